"""Tracker protocol: services such as MLflow that record and show training runs.

A tracker shows a job as ONE run, however many times the job was killed and restarted. The event log
remains the source of truth: at every start of a job, its history is sent to the tracker again, and
the tracker skips the points that it already has. So points that an earlier attempt could not send
(because it was killed or the server was down) are not lost, and tracking may begin in the middle of
a job.

    start(attempt) -> point, tags, artifact, in any order -> end(status)
          ^                                                     |
          +---------------- the next attempt -------------------+

`points.py` decides how events become points, `follow.py` when they are sent to a tracker.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class RunStatus(enum.Enum):
    """How an attempt ended. Until the end is recorded, the service shows the run as running."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class Kind(enum.Enum):
    """What a `MetricPoint` describes: an epoch, an evaluation, some steps, or a report."""

    EPOCH = "epoch"
    EVALUATION = "evaluation"
    STEPS = "steps"
    REPORT = "report"


@dataclass(frozen=True)
class MetricPoint:
    """Metrics at one moment of training, which a tracker records together.

    Attributes:
        kind: Reason for the point: an epoch ended, the validation data were evaluated, some
            seconds passed, or a report with one row per example was written.
        step: Steps completed by then.
        epoch: Epoch at that time, from 0.
        time: Time in seconds since 1970-01-01 UTC.
        training: Name -> value on the training data, including NaN and infinities.
        validation: Name -> value on the validation data, without the prefix `val_`. At the end of
            an epoch these are the latest known values, which an evaluation has already reported.
            Names from a report are prefixed with the name of the report's data.
    """

    kind: Kind
    step: int
    epoch: int
    time: float
    training: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrackedAttempt:
    """Description of one attempt at a job (one start of it), which a tracker receives.

    Attributes:
        number: Number of the attempt, from 1.
        job_id: Id of the job, the same in all of its attempts.
        run_name: Display name of the run.
        params: The requested options, by name.
        tags: Further properties of the job, by name, such as its dialect and package versions.
        commit: Commit of the user's code; empty if unknown.
    """

    number: int
    job_id: str
    run_name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""


class Tracker(Protocol):
    """A service that records and shows training runs.

    The contract, which `elasticdl.testing.tracker.check_tracker` checks for every tracker:

    * All attempts of a job are one run. Another job in the same output is another run.
    * Each metric has one value per step, even if several attempts send it: each attempt first sends
      the job's history, and then perhaps repeats steps after a checkpoint.
    * Two metrics never share a name, even if they are renamed.
    * The run's status is that of the last attempt: running after `start`, then as passed to `end`.
    * NaN and infinities do not prevent a point from being accepted.
    * An attempt that was killed before `end` leaves nothing behind that disturbs the next one.

    After `start`, only one thread at a time calls a tracker.
    """

    @property
    def where(self) -> str:
        """Display name of the service and its address, without a password."""
        ...

    def start(self, attempt: TrackedAttempt) -> None:
        """Create the run of a job, or continue the existing one.

        Raises:
            TrackingError: The service cannot be reached, or rejects the run.
        """
        ...

    def point(self, point: MetricPoint) -> None:
        """Record the metrics of a point, unless it is already recorded.

        Raises:
            TrackingError: The point cannot be recorded now; it may be sent again.
            ValueError: The point is rejected; sending it again is useless.
        """
        ...

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run, by name; a later value replaces an earlier one.

        Raises:
            TrackingError: The tags cannot be set now; the call may be repeated.
            ValueError: The tags are rejected; repeating the call is useless.
        """
        ...

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a copy of a file, or of a folder's contents, in the run.

        Args:
            path: The file or folder to copy.
            folder: Folder within the run's artifacts; empty for the top folder.

        Raises:
            TrackingError: The files cannot be stored now; the call may be repeated.
            ValueError: The files are rejected; repeating the call is useless.
        """
        ...

    def end(self, status: RunStatus, error: str = "") -> None:
        """Record how the attempt ended; the last call of an attempt.

        Raises:
            TrackingError: The status cannot be recorded now; the call may be repeated.
        """
        ...
