"""A session from its config to its reports; right from any state it was left in.

    train (resumes) --> export the best --> evaluate each example of validation and test data

Each of the three is skipped where it has been done for what the one before it left, so the same
command goes on wherever an earlier one ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import api
from elasticdl.artifacts.event_log import EVENTS_FILE
from elasticdl.engines import progress
from elasticdl.events import EpochFinished, Evaluated, JobStarted, StepCommitted, read_events
from elasticdl.sessions.state import State, Status, held, read_status, write_status
from elasticdl.training.create import quiet_frameworks
from elasticdl.zoo import git

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.job import Workers
    from elasticdl.sessions.project import Session


@dataclass
class _Running:
    """The status of a session that is being run, written whenever it changes.

    Attributes:
        folder: Of the session.
        status: As it was written last.
    """

    folder: Path
    status: Status = field(default_factory=Status)

    def now(self, state: State, **changes: Any) -> None:
        """Write that a state was reached."""
        self.status = self.status.now(state, **changes)
        write_status(self.folder, self.status)


def run(
    session: Session,
    *,
    num_epochs: int | None = None,
    workers: Workers | None = None,
    reporter: Reporter | None = None,
) -> Status:
    """Train, export and evaluate a session, going on where an earlier run of it ended.

    Args:
        session: Which.
        num_epochs: Instead of the config's; a finished session is trained on.
        workers: How many processes train; None trains in this one.
        reporter: Who tells people; None decides by the terminal.

    Raises:
        OutputBusyError: Another process runs it.
        ElasticDLError: See `elasticdl.errors`; the reason is in the session's status as well.
    """
    reporter = progress.for_stream() if reporter is None else reporter
    job = session.job(num_epochs=num_epochs, workers=workers)
    with held(session.folder, session.name) as status:
        running = _Running(session.folder, status)
        with _told(running):
            running.now(
                State.RUNNING,
                commit=git.commit_of(session.project) or "",
                num_epochs=job.training.num_epochs,
                metric=job.training.best_metric,
            )
            api.run(job, reporter)
            quiet_frameworks()
            # What computes is imported when there is something to compute.
            from elasticdl.sessions import export, trained  # noqa: PLC0415

            model = trained.open_trained(session)
            manifest = export.export(model)
            running.now(State.EXPORTED, metrics=manifest["metrics"], step=manifest["step"])
        return running.status


@contextlib.contextmanager
def _told(running: _Running) -> Iterator[None]:
    """Write how a run ended, if it does not end well."""
    try:
        yield
    except Exception as error:
        running.now(State.FAILED, error=str(error))
        raise
    except BaseException:
        # Ctrl-C and SIGTERM: what was reached is kept.
        running.now(State.KILLED)
        raise


def status_of(session_folder: Path) -> Status:
    """Return how far a session is, with what its events say of the training.

    Raises:
        OutputError: Its files cannot be read.
    """
    status = read_status(session_folder)
    log = session_folder / "training" / EVENTS_FILE
    if not log.is_file():
        return status
    step = epoch = num_epochs = 0
    metrics: dict[str, Any] = {}
    for event in read_events(log):
        if isinstance(event, JobStarted):
            num_epochs = event.num_epochs
        if isinstance(event, StepCommitted):
            step = event.step
        if isinstance(event, EpochFinished):
            epoch, metrics = event.epoch + 1, {**metrics, **event.metrics}
        if isinstance(event, Evaluated):
            metrics |= {f"val_{name}": value for name, value in event.metrics.items()}
    told: dict[str, Any] = {"epoch": epoch, "num_epochs": num_epochs}
    if status.state not in {State.EXPORTED, State.EVALUATED}:
        told |= {"step": step, "metrics": metrics}
    return replace(status, **told)
