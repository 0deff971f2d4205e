"""Runs a session from its config to its reports, resuming from any earlier state.

    train (resumes) --> export the best --> evaluate each example of validation and test data

Each of the three phases is skipped if it was already done for the result of the phase before, so
the same command resumes wherever an earlier one ended.
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
from elasticdl.engines import progress_bar
from elasticdl.errors import OutputTakenError
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, Evaluated, JobStarted, StepCommitted
from elasticdl.sessions.state import SessionState, SessionStatus, held, read_status, write_status
from elasticdl.sessions.tracking import followed, tracking_of
from elasticdl.training.create import quiet_frameworks
from elasticdl.zoo import git

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.job import Job, Workers
    from elasticdl.sessions.project import SessionProject


@dataclass
class _Running:
    """The status of a running session, written to disk whenever it changes.

    Attributes:
        folder: Folder of the session.
        status: The status that was last written.
    """

    folder: Path
    status: SessionStatus = field(default_factory=SessionStatus)

    def now(self, state: SessionState, **changes: Any) -> None:
        """Record that the session has reached a state; `changes` are other fields of the status."""
        self.status = self.status.now(state, **changes)
        write_status(self.folder, self.status)


def run(
    session: SessionProject,
    *,
    num_epochs: int | None = None,
    workers: Workers | None = None,
    checkpoint_steps: int = 0,
    tracked: bool = True,
    tracking_uri: str | None = None,
    reporter: Reporter | None = None,
) -> SessionStatus:
    """Train, export and evaluate a session; resume an earlier run of it.

    Args:
        session: The session.
        num_epochs: Number of epochs in total. None: that of the config. With a higher number, a
            finished session is trained further.
        workers: Training processes. None: train in this process.
        checkpoint_steps: Save a checkpoint every N steps. 0: decide by time, so that saving takes
            at most 1 % of the training time.
        tracked: Whether to track it in MLflow and TensorBoard.
        tracking_uri: An MLflow server, database or folder. None: `MLFLOW_TRACKING_URI` of the
            environment, or `runs/mlflow.db` of the project.
        reporter: Reports progress to the user. None: one that suits the terminal.

    Raises:
        OutputBusyError: Another process is running the session.
        OutputTakenError: An earlier run of the session had different settings.
        ElasticDLError: The run failed; the reason is in the session's status as well. See
            `elasticdl.errors`.
    """
    reporter = progress_bar.for_stream() if reporter is None else reporter
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
        with _recording_the_end(running), _untouched(session, before):
            running.now(
                SessionState.RUNNING,
                commit=commit,
                num_epochs=job.training.num_epochs,
                metric=job.training.best_metric,
            )
            api.run(job, reporter)
            try:
                _finish(session, job, running, reporter)
            except BaseException as error:
                if not isinstance(error, Exception):
                    error.add_note("The model is trained; run the same command to evaluate it.")
                raise
        return running.status


def _finish(session: SessionProject, job: Job, running: _Running, reporter: Reporter) -> None:
    """Export and evaluate the trained model, unless that is already done."""
    quiet_frameworks()
    # Imported only if there is something to compute.
    from elasticdl.sessions import export, report, trained  # noqa: PLC0415

    sha256 = load_trained_model(str(session.output)).description.params_sha256
    exported, reported = export.exported(session), report.reported(session)
    if not (_is_of(exported, sha256) and _is_of(reported, sha256)):
        with followed(session, job, running.status.attempt, reporter) as followers:
            model = trained.open_trained(session)
            exported = export.export(model)
            running.now(SessionState.EXPORTED, metrics=exported["metrics"], step=exported["step"])
            reported = report.report(model, reporter)
            followers.reported(session, exported["step"], _means(reported))
    assert exported is not None  # noqa: S101 - there, or just made
    assert reported is not None  # noqa: S101 - as above
    metrics = {**exported["metrics"], **_means(reported)}
    running.now(SessionState.EVALUATED, metrics=metrics, step=exported["step"])


def _is_of(manifest: dict[str, Any] | None, sha256: str) -> bool:
    return manifest is not None and bool(manifest["params_sha256"] == sha256)


def _means(reported: dict[str, Any]) -> dict[str, float]:
    return {
        f"{split}_{name}": mean
        for split, about in reported["splits"].items()
        for name, mean in about["means"].items()
    }


@contextlib.contextmanager
def _recording_the_end(running: _Running) -> Iterator[None]:
    """Context manager that records an exception of its block in the session's status.

    An error is recorded as `failed`, Ctrl-C and SIGTERM as `killed`. An `OutputTakenError` is not
    recorded, because the output and its status belong to a run with other settings.
    """
    try:
        yield
    except OutputTakenError:
        raise
    except Exception as error:
        running.now(SessionState.FAILED, error=str(error))
        raise
    except BaseException:
        # Ctrl-C and SIGTERM: progress is saved.
        running.now(SessionState.KILLED)
        raise


@contextlib.contextmanager
def _untouched(session: SessionProject, before: SessionStatus) -> Iterator[None]:
    """Context manager that restores the session's status if the block raises `OutputTakenError`.

    The block raises this error if the output has checkpoints of a run with other settings. The
    new run is then rejected, and must not change the status of the earlier run.

    Args:
        session: The session that the block runs.
        before: The session's status before the run.

    Raises:
        OutputTakenError: The same error, with a message that lists the different settings and says
            what to do.
    """
    try:
        yield
    except OutputTakenError as error:
        write_status(session.folder, before)
        lines = [line for line in str(error).splitlines() if line.startswith("  ")]
        differing = "\n".join(line.replace("model.params.", "") for line in lines)
        raise OutputTakenError(
            f"{session.config_file}: the session {session.name} was started with different "
            "settings:\n"
            f"{differing}\n"
            f"Create a separate session, runs/OTHER/config.yaml, or delete {session.output} to "
            "start over."
        ) from error


def status_of(session_folder: Path) -> SessionStatus:
    """Return a session's status, with the progress of training from its events.

    Raises:
        OutputError: The session's files cannot be read.
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
    context: dict[str, Any] = {"epoch": epoch, "num_epochs": num_epochs, "resume": resume}
    if status.state not in {SessionState.EXPORTED, SessionState.EVALUATED}:
        context |= {"step": step, "metrics": metrics}
    return replace(status, **context)
