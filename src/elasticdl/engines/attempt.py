"""One start of a job: the claim on its output, its log and its checkpoints, until it ends.

    claim the output -> open the log -> find the newest checkpoint -> ... -> tell how it ended

Callers: `run.py` for a training on data that is here, `federated/` for one that is elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.artifacts.checkpoint import FOLDER as CHECKPOINTS
from elasticdl.artifacts.checkpoint import Checkpoint, CheckpointStore
from elasticdl.artifacts.event_log import open_event_log
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.engines.job_messages import MessageLog, Noting
from elasticdl.errors import OutputError, OutputLostError
from elasticdl.events import JobFailed
from elasticdl.job import RAYJOB_VARIABLE
from elasticdl.scratch import remove_leftovers
from elasticdl.tracking.follow import FollowedLog

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.job import Job
    from elasticdl.tracking.follow import Log


@dataclass(frozen=True, eq=False)
class Attempt:
    """A job that was started, and what it holds while it runs.

    Attributes:
        job: What was asked for.
        folder: The output, claimed.
        generation: How often the job was started there.
        store: Its checkpoints.
        events: Its log.
        reporter: Who tells people.
        scratch: An empty folder on the output's disk, gone at the end.
        checkpoint: The newest one; None at the start.
    """

    job: Job
    folder: OutputFolder
    generation: int
    store: CheckpointStore
    events: FollowedLog
    reporter: Reporter
    scratch: Path
    checkpoint: Checkpoint | None


def note_what_is_kept(error: BaseException, job: Job, store: CheckpointStore) -> None:
    """Note on an interrupt what the job has saved, for whoever shows it; see PEP 678.

    Args:
        error: What ends the job. An `Exception` says in its message what to do.
        job: What was asked for.
        store: Its checkpoints, all of them written.
    """
    if isinstance(error, Exception):
        return
    step = max(store.steps(), default=None)
    if step is None:
        error.add_note("Nothing was saved yet; run the same command to start again.")
        return
    what = "step" if job.federation is None else "round"
    error.add_note(f"Progress is saved up to {what} {step:,}; run the same command to resume.")


@contextlib.contextmanager
def _told_on_cluster(log: Log, job: Job) -> Iterator[Log]:
    """Yield a log that also tells the progress on the RayJob of this pod; elsewhere the log."""
    rayjob = os.environ.get(RAYJOB_VARIABLE)
    if rayjob is None or "KUBERNETES_SERVICE_HOST" not in os.environ:
        yield log
        return
    from elasticdl.cluster.annotate import ProgressLog  # noqa: PLC0415 - in a cluster only

    with ProgressLog(log, job, rayjob) as told:
        yield told


@contextlib.contextmanager
def attempt(job: Job, reporter: Reporter) -> Iterator[Attempt]:
    """Claim a job's output and yield what a start of it holds; what its block raises is told.

    A job that fails before its first checkpoint gives the place back.

    Raises:
        OutputError: The output cannot be used, or is another job's; see `elasticdl.errors`.
    """
    if job.output is None:
        raise ValueError(f"Not a job with an output: {job}")
    remove_leftovers()
    folder = OutputFolder(job.output)
    with folder.claim(job, reporter.note) as claim:
        store = CheckpointStore(folder, job.training.keep_checkpoint_max)
        with (
            store,
            open_event_log(folder) as written,
            _told_on_cluster(written, job) as log,
            MessageLog(log).attached() as messages,
            FollowedLog(messages, reporter.note) as events,
            folder.scratch() as scratch,
        ):
            reporter = Noting(reporter, messages)
            try:
                restored = store.latest()
                for damaged in restored.damaged if restored else ():
                    reporter.note(f"Passed over: {damaged}")
                yield Attempt(
                    job=job,
                    folder=folder,
                    generation=claim.generation,
                    store=store,
                    events=events,
                    reporter=reporter,
                    scratch=scratch,
                    checkpoint=restored.checkpoint if restored else None,
                )
            except OutputLostError:
                # The log, and how the job ended, are the other process' now.
                raise
            except BaseException as error:
                interrupted = not isinstance(error, Exception)
                events.write(
                    JobFailed(
                        kind="Interrupted" if interrupted else type(error).__name__,
                        message=str(error),
                        step=max(store.steps(), default=0),
                    )
                )
                # The first one may be on its way.
                with contextlib.suppress(OutputError):
                    store.wait()
                note_what_is_kept(error, job, store)
                if not store.steps():
                    # What is left of one that found no room would make it another's folder.
                    folder.delete(CHECKPOINTS)
                    claim.abandon()
                raise
            finally:
                reporter.ended()
