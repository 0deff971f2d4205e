"""Tracking of a session in MLflow and TensorBoard.

Training itself reports to the trackers of `Job.tracking`. The later phases of a session, export and
evaluation, belong to the same run in each tracker. This module reopens that run for them, and ends
it when the session ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import ElasticDLError, TrackingError
from elasticdl.job import Tracking
from elasticdl.tracking.address import DATABASE_FILE, tracking_uri
from elasticdl.tracking.create import attempt_of, open_trackers
from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.job import Job
    from elasticdl.sessions.project import SessionProject
    from elasticdl.tracking.tracker import Tracker

_IGNORED = (DATABASE_FILE, ".mlflow-*", "mlruns/", ".gitignore")


def tracking_of(session: SessionProject, uri: str | None, commit: str) -> Tracking:
    """Return the tracking options of a session.

    Args:
        session: The session.
        uri: An MLflow server, database or folder. None: `MLFLOW_TRACKING_URI` of the environment,
            or a database of the project.
        commit: Commit of the project.
    """
    asked = uri or os.environ.get("MLFLOW_TRACKING_URI")
    # MLflow need not be installed unless the user requested it.
    has_mlflow = asked is not None or importlib.util.find_spec("mlflow") is not None
    if asked is None and has_mlflow:
        runs = session.folder.parent
        ignore = runs / ".gitignore"
        if not ignore.exists():
            ignore.write_text("\n".join(f"/{name}" for name in _IGNORED) + "\n", encoding="utf-8")
        asked = str(runs / DATABASE_FILE)
    tags = {"session_type": "training", "project name": session.project.name}
    return Tracking(
        uri=tracking_uri(asked) if has_mlflow and asked is not None else None,
        experiment=session.experiment,
        run_name=session.name,
        tensorboard=importlib.util.find_spec("tensorboard") is not None,
        tags={**tags, "run name": session.name, **({"code version": commit} if commit else {})},
    )


class SessionTrackers:
    """The trackers of a session in its phases after training, export and evaluation.

    Args:
        trackers: Started trackers.
        reporter: Receives a note if a tracker fails.
    """

    def __init__(self, trackers: list[Tracker], reporter: Reporter) -> None:
        self._trackers, self._reporter = trackers, reporter

    def reported(self, session: SessionProject, step: int, means: dict[str, float]) -> None:
        """Log the means of the reports' columns, and upload the reports themselves.

        Args:
            session: The session.
            step: Number of updates of the evaluated model.
            means: Mean of each column over the examples of its data: `test_NAME` or
                `validation_NAME`, where NAME is the function that computed the column.
        """
        point = MetricPoint(Kind.REPORT, step, 0, time.time(), validation=means)
        reports = session.folder / "reports"
        for tracker in self._trackers:
            with self._noted():
                tracker.point(point)
                tracker.artifact(reports, "reports")

    def end(self, status: RunStatus, error: str = "") -> None:
        """End the session's run in each tracker, and record there how the session ended."""
        for tracker in self._trackers:
            with self._noted():
                tracker.end(status, error)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (TrackingError, ValueError) as error:
            self._reporter.note(f"Not tracked: {error}")


@contextlib.contextmanager
def followed(
    session: SessionProject, job: Job, attempt: int, reporter: Reporter
) -> Iterator[SessionTrackers]:
    """Context manager that continues a session's tracked run for the phases after training.

    It yields the trackers, and ends the run on exit: as finished, failed or killed. If a tracker
    cannot be reached, only a note is shown: training is over, and its results are saved.

    Args:
        session: The session.
        job: Its training job, whose tracking options say where the run is.
        attempt: Number of starts of the session so far; recorded with the run.
        reporter: Receives the notes.
    """
    followers = SessionTrackers(_started(session, job, attempt, reporter), reporter)
    try:
        yield followers
    except Exception as error:
        followers.end(RunStatus.FAILED, str(error))
        raise
    except BaseException:
        followers.end(RunStatus.KILLED)
        raise
    followers.end(RunStatus.FINISHED)


def _started(session: SessionProject, job: Job, attempt: int, reporter: Reporter) -> list[Tracker]:
    if job.tracking is None:
        return []
    # Only the training phase has curves.
    tracking = replace(job.tracking, tensorboard=False)
    about = attempt_of(replace(job, tracking=tracking), attempt)
    try:
        trackers: list[Any] = open_trackers(tracking, OutputFolder(str(session.output)), _silent)
        for tracker in trackers:
            tracker.start(about)
    except ElasticDLError as error:
        reporter.note(f"Not tracked: {error}")
        return []
    return trackers


def _silent(note: str) -> None:
    """Discard a note on where the session is tracked: the training phase has reported it."""
    del note
