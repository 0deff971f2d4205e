"""Checks that any implementation of `tracking.tracker.Tracker` keeps the contract.

    check_tracker(lambda: MyTrackingBackend(new_folder()))

`MyTrackingBackend` implements `TrackingBackend`. It creates one tracker after the other for the
same job output, as the attempts of a job do, and reads back what the tracking service displays. The
checks do not depend on how a tracker names its curves (one per metric), only on whether each
recorded value is displayed once.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus, TrackedAttempt, Tracker


@dataclass(frozen=True)
class Shown:
    """Runs and curves that a tracking service displays to its user.

    Attributes:
        num_runs: Number of runs.
        curves: Curves of the newest run: name -> its points as (step, value), in order.
        status: Status of the newest run; None if it has none.
    """

    num_runs: int
    curves: Mapping[str, Sequence[tuple[int, float]]]
    status: str | None = None


class TrackingBackend(Protocol):
    """Interface to where the tracker under test records runs, such as a folder or a server."""

    def open(self) -> Tracker:
        """Create a new tracker for the same job output, as the process of a new attempt does."""
        ...

    def read(self) -> Shown:
        """Return the runs and curves that the service shows now."""
        ...


def check_tracker(new_place: Callable[[], TrackingBackend]) -> None:
    """Check that a tracker keeps the contract in the docstring of `Tracker`.

    Args:
        new_place: Function () -> new, empty backend; called for each check.

    Raises:
        AssertionError: The tracker breaks the contract; the message says how.
    """
    check_attempts_are_one_run(new_place())
    check_repeated_points_are_stored_once(new_place())
    check_metrics_stay_apart(new_place())
    check_status_is_that_of_the_last_attempt(new_place())
    check_non_finite_values_are_accepted(new_place())
    check_another_job_is_another_run(new_place())


def check_attempts_are_one_run(place: TrackingBackend) -> None:
    """Check that all attempts of a job, even killed and failed ones, are recorded as one run.

    The check makes three attempts. The run must have the points of all of them, each point once.
    """
    first = _started(place, 1)
    first.point(_epoch(0))
    # Killed: the tracker is not notified.
    second = _started(place, 2)
    _tell(second, [_epoch(0), _epoch(1)])
    second.end(RunStatus.FAILED, "it broke")
    third = _started(place, 3)
    _tell(third, [_epoch(0), _epoch(1), _epoch(2)])
    third.end(RunStatus.FINISHED)
    shown = place.read()
    _require(shown.num_runs == 1, f"Three attempts of a job are {shown.num_runs} runs, not one")
    _require_values(shown, [1.0, 0.5, 0.25])


def check_repeated_points_are_stored_once(place: TrackingBackend) -> None:
    """Check that a point that is sent again is not stored twice.

    It may be sent again in the same attempt or in a later one.
    """
    points = [
        MetricPoint(Kind.STEPS, 4, 0, 4.0, training={"loss": 9.0, "records_per_s": 100.0}),
        MetricPoint(Kind.EVALUATION, 5, 0, 5.0, validation={"loss": 7.0}),
        _epoch(0),
        _epoch(1),
    ]
    first = _started(place, 1)
    _tell(first, [*points, *points])
    second = _started(place, 2)
    # Resumed training repeats points at a later time.
    again = [dataclasses.replace(point, time=point.time + 100) for point in points]
    _tell(second, [*points, *again, _epoch(2)])
    second.end(RunStatus.FINISHED)
    shown = place.read()
    _require_values(shown, [9.0, 100.0, 7.0, 1.0, 0.5, 0.25])


def check_metrics_stay_apart(place: TrackingBackend) -> None:
    """Check that each metric has one curve of its own, which all attempts continue.

    This includes metrics with names that a tracker may have to change for its service, such as
    "dice@0.5" and "dice%0.5".
    """
    names = ["dice@0.5", "dice_0.5", "dice%0.5", "acc (macro)", "../acc", "epoch", "é", "x" * 300]
    values = [float(10 + number) for number in range(len(names))]
    first = _started(place, 1)
    first.point(_named(0, dict(zip(names[:2], values[:2], strict=True))))
    second = _started(place, 2)
    second.point(_named(0, dict(zip(names[:2], values[:2], strict=True))))
    second.point(_named(1, dict(zip(names[::-1], values[::-1], strict=True))))
    second.end(RunStatus.FINISHED)
    curves = place.read().curves
    of_value: dict[float, set[str]] = {}
    for name, curve in curves.items():
        for _, value in curve:
            of_value.setdefault(value, set()).add(name)
    for name, value in zip(names, values, strict=True):
        _require(len(of_value.get(value, ())) == 1, f"The curve of {name!r} is lost or split")
    homes = [of_value[value] for value in values]
    for one, other in itertools.combinations(range(len(names)), 2):
        _require(homes[one] != homes[other], f"{names[one]!r} and {names[other]!r} became one")


def check_status_is_that_of_the_last_attempt(place: TrackingBackend) -> None:
    """Check that a run shows its last attempt's status: "running" until `end` sets another."""
    for number, status in enumerate(
        [RunStatus.KILLED, RunStatus.FAILED, RunStatus.FINISHED], start=1
    ):
        tracker = _started(place, number)
        shown = place.read().status
        if shown is not None:
            _require(shown == "RUNNING", f"After `start` the status is {shown}")
        tracker.end(status, "why")
        shown = place.read().status
        if shown is not None:
            _require(shown == status.value, f"After `end({status})` the status is {shown}")


def check_non_finite_values_are_accepted(place: TrackingBackend) -> None:
    """Check that NaN and infinities neither raise nor keep the next epoch from being recorded."""
    tracker = _started(place, 1)
    tracker.point(_named(0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 3.0}))
    tracker.point(_named(1, {"a": 4.0, "b": 5.0, "c": 6.0, "d": 7.0}))
    tracker.end(RunStatus.FINISHED)
    values = {value for curve in place.read().curves.values() for _, value in curve}
    missing = {3.0, 4.0, 5.0, 6.0, 7.0} - values
    _require(not missing, f"{sorted(missing)} were lost, logged together with NaN and infinity")


def check_another_job_is_another_run(place: TrackingBackend) -> None:
    """Check that a new job in the output of an earlier job gets a run of its own."""
    tracker = _started(place, 1)
    tracker.point(_epoch(0))
    tracker.end(RunStatus.FAILED, "it never began")
    other = place.open()
    other.start(TrackedAttempt(number=2, job_id="train-other", run_name="other"))
    other.point(_epoch(3))
    other.end(RunStatus.FINISHED)
    shown = place.read()
    values = {value for curve in shown.curves.values() for _, value in curve}
    _require(1.0 not in values, "A job's run has the points of another job")
    _require_values(shown, [0.125])


def _started(place: TrackingBackend, number: int) -> Tracker:
    tracker = place.open()
    tracker.start(TrackedAttempt(number=number, job_id="train-1", run_name="a run"))
    return tracker


def _tell(tracker: Tracker, points: Sequence[MetricPoint]) -> None:
    for point in points:
        tracker.point(point)


def _epoch(number: int) -> MetricPoint:
    return _named(number, {"loss": 0.5**number})


def _named(epoch: int, values: Mapping[str, float]) -> MetricPoint:
    step = 10 * (epoch + 1)
    return MetricPoint(Kind.EPOCH, step, epoch, float(step), training=values)


def _require_values(shown: Shown, expected: Sequence[float]) -> None:
    for name, curve in shown.curves.items():
        steps = [step for step, _ in curve]
        _require(len(steps) == len(set(steps)), f"{name} has a step twice: {steps}")
    values = [value for curve in shown.curves.values() for _, value in curve]
    for value in expected:
        number = values.count(value)
        _require(number == 1, f"The value {value} was logged once but appears {number} times")


def _require(holds: bool, broken: str) -> None:
    if not holds:
        raise AssertionError(broken)
