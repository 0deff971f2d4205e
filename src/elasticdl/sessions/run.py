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
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines import progress
from elasticdl.errors import OutputTakenError
from elasticdl.events import EpochFinished, Evaluated, JobStarted, StepCommitted, read_events
from elasticdl.sessions.state import State, Status, held, read_status, write_status
from elasticdl.sessions.tracking import followed, tracking_of
from elasticdl.training.create import quiet_frameworks
from elasticdl.zoo import git

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.job import Job, Workers
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
    checkpoint_steps: int = 0,
    tracked: bool = True,
    tracking_uri: str | None = None,
    reporter: Reporter | None = None,
) -> Status:
    """Train, export and evaluate a session, going on where an earlier run of it ended.

    Args:
        session: Which.
        num_epochs: Instead of the config's; a finished session is trained on.
        workers: How many processes train; None trains in this one.
        checkpoint_steps: Checkpoint each so many steps; 0 is by time, at most 1 % of it.
        tracked: Whether people can follow it in MLflow and TensorBoard.
        tracking_uri: An MLflow server, database or folder; None takes `MLFLOW_TRACKING_URI` of
            the environment, or `runs/mlflow.db` of the project.
        reporter: Who tells people; None decides by the terminal.

    Raises:
        OutputBusyError: Another process runs it.
        ElasticDLError: See `elasticdl.errors`; the reason is in the session's status as well.
    """
    reporter = progress.for_stream() if reporter is None else reporter
    commit = git.commit_of(session.project) or ""
    job = session.job(
        num_epochs=num_epochs,
        workers=workers,
        checkpoint_steps=checkpoint_steps,
        tracking=tracking_of(session, tracking_uri, commit) if tracked else None,
    )
    before = read_status(session.folder)
    with held(session.folder, session.name) as status:
        running = _Running(session.folder, status)
        with _told(running), _untouched(session, before):
            running.now(
                State.RUNNING,
                commit=commit,
                num_epochs=job.training.num_epochs,
                metric=job.training.best_metric,
            )
            api.run(job, reporter)
            try:
                _finish(session, job, running, reporter)
            except BaseException as error:
                if not isinstance(error, Exception):
                    error.add_note("The model is trained; the same command evaluates it.")
                raise
        return running.status


def _finish(session: Session, job: Job, running: _Running, reporter: Reporter) -> None:
    """Export and evaluate what was trained, where that is not done yet."""
    quiet_frameworks()
    # What computes is imported when there is something to compute.
    from elasticdl.sessions import export, report, trained  # noqa: PLC0415

    sha256 = load_trained_model(str(session.output)).description.params_sha256
    exported, reported = export.exported(session), report.reported(session)
    if not (_is_of(exported, sha256) and _is_of(reported, sha256)):
        with followed(session, job, running.status.attempt, reporter) as followers:
            model = trained.open_trained(session)
            exported = export.export(model)
            running.now(State.EXPORTED, metrics=exported["metrics"], step=exported["step"])
            reported = report.report(model, reporter)
            followers.reported(session, exported["step"], _means(reported))
    assert exported is not None  # noqa: S101 - there, or just made
    assert reported is not None  # noqa: S101 - as above
    metrics = {**exported["metrics"], **_means(reported)}
    running.now(State.EVALUATED, metrics=metrics, step=exported["step"])


def _is_of(manifest: dict[str, Any] | None, sha256: str) -> bool:
    return manifest is not None and bool(manifest["params_sha256"] == sha256)


def _means(reported: dict[str, Any]) -> dict[str, float]:
    return {
        f"{split}_{name}": mean
        for split, about in reported["splits"].items()
        for name, mean in about["means"].items()
    }


@contextlib.contextmanager
def _told(running: _Running) -> Iterator[None]:
    """Write how a run ended, if it does not end well."""
    try:
        yield
    except OutputTakenError:
        raise
    except Exception as error:
        running.now(State.FAILED, error=str(error))
        raise
    except BaseException:
        # Ctrl-C and SIGTERM: what was reached is kept.
        running.now(State.KILLED)
        raise


@contextlib.contextmanager
def _untouched(session: Session, before: Status) -> Iterator[None]:
    """Leave the status as it was where another session than the one that is there is asked for.

    Raises:
        OutputTakenError: That is so; it says what is another.
    """
    try:
        yield
    except OutputTakenError as error:
        write_status(session.folder, before)
        lines = [line for line in str(error).splitlines() if line.startswith("  ")]
        differing = "\n".join(line.replace("model.params.", "") for line in lines)
        raise OutputTakenError(
            f"{session.config_file}: the session {session.name} was begun with something else. "
            f"What differs:\n{differing}\n"
            f"Make it a session of its own, runs/OTHER/config.yaml, or delete {session.output} to "
            "start over."
        ) from error


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
    resume = ""
    metrics: dict[str, Any] = {}
    for event in read_events(log):
        if isinstance(event, JobStarted):
            num_epochs, resume = event.num_epochs, event.resume
        if isinstance(event, StepCommitted):
            step = event.step
        if isinstance(event, EpochFinished):
            epoch, metrics = event.epoch + 1, {**metrics, **event.metrics}
        if isinstance(event, Evaluated):
            metrics |= {f"val_{name}": value for name, value in event.metrics.items()}
    told: dict[str, Any] = {"epoch": epoch, "num_epochs": num_epochs, "resume": resume}
    if status.state not in {State.EXPORTED, State.EVALUATED}:
        told |= {"step": step, "metrics": metrics}
    return replace(status, **told)
