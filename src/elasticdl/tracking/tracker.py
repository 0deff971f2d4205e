"""What a tracker is: a place where people follow trainings, fed with what the log of events says.

A tracker shows a job as ONE run, however often the job was killed and started again. The log of
events stays the truth: at every start of a job its history is told to the tracker once more, and
the tracker leaves out what it has. So nothing is missing that an earlier attempt could not tell
(it was killed, the server was down), and tracking may begin in the middle of a job.

    start(attempt) -> point, tags, artifact, in any order -> end(status)
          ^                                                     |
          +---------------- the next attempt -------------------+

How events become points is decided in `points.py`, when a tracker is told in `follow.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Status(enum.Enum):
    """How an attempt ended; one that was killed with no chance to say so is still running."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class Kind(enum.Enum):
    """What a point is about."""

    EPOCH = "epoch"
    EVALUATION = "evaluation"
    STEPS = "steps"
    REPORT = "report"


@dataclass(frozen=True)
class Point:
    """What was measured at one moment.

    Attributes:
        kind: Whether an epoch ended, the validation data were gone through, some seconds
            passed, or a report was made on each example of some data.
        step: Updates made by then.
        epoch: Epoch of it, from 0.
        time: When, in seconds since 1970-01-01 UTC.
        training: Name -> value on the training data; NaN and infinities are values.
        validation: Name -> value on the validation data, with no `val_` before it. At an epoch's
            end these are the last ones known, which an evaluation has told before. A report's
            have the name of their data before them.
    """

    kind: Kind
    step: int
    epoch: int
    time: float
    training: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """One start of a job, as a tracker is told of it.

    Attributes:
        number: Which start it is, from 1.
        job_id: Names the job; the same in all its attempts.
        run_name: What people call the run.
        params: What was asked for, by name.
        tags: What else is known of it, by name.
        commit: Commit of the user's code; empty if unknown.
    """

    number: int
    job_id: str
    run_name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""


class Tracker(Protocol):
    """A place where people follow trainings.

    Laws, which `elasticdl.testing.tracker.check_tracker` holds every tracker to:

    * All attempts of a job are one run. Another job in the same output is another run.
    * What is told twice is there once: of each metric one value at each step, also if it was
      told by an earlier attempt. Each attempt is told the history first, and a training that goes
      on from a checkpoint repeats what lies behind it.
    * Two metrics stay two, whatever their names become.
    * The run's status is that of the last attempt: running from `start` on, then what `end` said.
    * NaN and infinities do not keep a point from being taken.
    * An attempt that ends without `end` leaves nothing behind that the next one stumbles over.

    After `start`, one thread at a time calls a tracker.
    """

    @property
    def where(self) -> str:
        """What people call the place, with no password in it."""
        ...

    def start(self, attempt: Attempt) -> None:
        """Begin the run of a job, or go on with it.

        Raises:
            TrackingError: The place cannot be reached, or refuses.
        """
        ...

    def point(self, point: Point) -> None:
        """Take a point, unless it is known.

        Raises:
            TrackingError: It cannot be taken now; it may be told again.
            ValueError: It will never be taken.
        """
        ...

    def tags(self, values: Mapping[str, str]) -> None:
        """Say something of the run, by name; a later word replaces an earlier one.

        Raises:
            TrackingError: As in `point`.
            ValueError: As in `point`.
        """
        ...

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep a copy of a file, or of what is in a folder, under a folder of the run.

        Raises:
            TrackingError: As in `point`.
            ValueError: As in `point`.
        """
        ...

    def end(self, status: Status, error: str = "") -> None:
        """Say how the attempt ended; the last call of an attempt.

        Raises:
            TrackingError: As in `point`.
        """
        ...
