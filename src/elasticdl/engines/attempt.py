"""Attempt: one start of a job, with its claim on the output, its log and its checkpoints.

    claim the output -> open the log -> find the newest checkpoint -> ... -> report how it ended

Callers: `run.py` for a job on local data, `federated/` for a job across parties.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.artifacts.checkpoint_store import FOLDER as CHECKPOINTS
from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore
from elasticdl.artifacts.claim import claim
from elasticdl.artifacts.event_log import open_event_log
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import MODEL_FILE
from elasticdl.engines.job_messages import MessageLog, RecordingReporter
from elasticdl.errors import OutputError, OutputLostError, is_refusal
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
    """A running attempt at a job: its output folder, checkpoints, event log and reporter.

    Attributes:
        job: The job.
        folder: The output folder, already claimed.
        generation: Number of times the job has been started in this folder.
        store: The checkpoints in the folder.
        events: The event log in the folder.
        reporter: Reports progress to the user.
        scratch: A folder for temporary files on the output's disk, empty at first; removed when the
            attempt ends.
        checkpoint: The newest checkpoint; None for a new job.
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
    """Add a note (PEP 678) on the saved progress to a Ctrl-C or SIGTERM exception that ends a job.

    Args:
        error: The exception. An `Exception` gets no note, because its message already explains what
            to do; Ctrl-C raises a `KeyboardInterrupt`, which is not one.
        job: The job.
        store: The checkpoints of the job, of which the note names the newest. Call `store.wait`
            before, so that none is still being written.
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
def _annotated_on_cluster(log: Log, job: Job) -> Iterator[Log]:
    """Context manager that yields the event log to write to: `log`, or one that shows progress too.

    In a Kubernetes RayJob, the yielded log writes each event to `log`, and the progress to the
    RayJob's annotations, where Kubernetes tools show it. Elsewhere, `log` itself is yielded.
    """
    rayjob = os.environ.get(RAYJOB_VARIABLE)
    if rayjob is None or "KUBERNETES_SERVICE_HOST" not in os.environ:
        yield log
        return
    from elasticdl.cluster.annotate import ProgressLog  # noqa: PLC0415 - in a cluster only

    with ProgressLog(log, job, rayjob) as annotated:
        yield annotated


@contextlib.contextmanager
def attempt(job: Job, reporter: Reporter) -> Iterator[Attempt]:
    """Context manager that claims a job's output, yields the attempt, and logs errors of its block.

    If the block raises an error before there is a checkpoint or a trained model, `job.json` is
    deleted, so that a different job may use the folder. If, in addition, this is the first start
    and the same command would fail again (such as for a wrong option), no files are left in the
    folder. If the block raises `OutputLostError`, nothing is logged or deleted, because another
    process has taken over the folder.

    Raises:
        OutputError: The output cannot be used, or belongs to another job; see `elasticdl.errors`.
    """
    if job.output is None:
        raise ValueError(f"Not a job with an output: {job}")
    remove_leftovers()
    folder = OutputFolder(job.output)
    with claim(folder, job, reporter.note) as claimed:
        store = CheckpointStore(folder, job.training.keep_checkpoint_max)
        with (
            store,
            open_event_log(folder) as written,
            _annotated_on_cluster(written, job) as log,
            MessageLog(log).attached() as messages,
            FollowedLog(messages, reporter.note) as events,
            folder.scratch() as scratch,
        ):
            reporter = RecordingReporter(reporter, messages)
            try:
                restored = store.latest()
                for damaged in restored.damaged if restored else ():
                    reporter.note(f"Skipped a damaged checkpoint: {damaged}")
                if restored is None and folder.exists(MODEL_FILE):
                    reporter.note(
                        f"Starting from the beginning: {folder.uri} has no checkpoints to resume "
                        "from. When the training ends, its model replaces the trained model in the "
                        "folder. To keep that one, use another --output."
                    )
                yield Attempt(
                    job=job,
                    folder=folder,
                    generation=claimed.generation,
                    store=store,
                    events=events,
                    reporter=reporter,
                    scratch=scratch,
                    checkpoint=restored.checkpoint if restored else None,
                )
            except OutputLostError:
                # The log now belongs to the other process, which will write how the job ends.
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
                # The first checkpoint may still be being written.
                with contextlib.suppress(OutputError):
                    store.wait()
                note_what_is_kept(error, job, store)
                if not store.steps():
                    # The rest of a checkpoint that failed on a full disk would make the folder look
                    # as if another job had written it.
                    folder.delete(CHECKPOINTS)
                    # Without job.json, a trained model of an earlier run would look foreign.
                    if not folder.exists(MODEL_FILE):
                        # On a cluster, the log is where the reason is looked up.
                        claimed.abandon(
                            refused=is_refusal(error)
                            and not messages.started
                            and RAYJOB_VARIABLE not in os.environ
                        )
                raise
            finally:
                reporter.ended()
