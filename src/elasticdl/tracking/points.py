"""What a tracker is told of an event; no tracker is known here, and no clock but the events'.

EpochFinished -> a point of the training metrics (and the validation's, as last known)
Evaluated     -> a point of the validation metrics
StepCommitted -> one point for all of the last ten seconds: a long epoch can be followed
RoundFinished -> a point of the training metrics of the parties, one a round
JobFinished, JobFailed -> how the attempt ended
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.events import (
    EpochFinished,
    Evaluated,
    JobFailed,
    JobFinished,
    JobStarted,
    RoundFinished,
    StepCommitted,
)
from elasticdl.tracking.tracker import Kind, Point, Status

if TYPE_CHECKING:
    from elasticdl.events import Event

_INTERVAL_S = 10.0
_INTERRUPTED = "Interrupted"
_VALIDATION = "val_"


class Points:
    """Turns events into points, in their order.

    Args:
        interval_s: How long steps are gathered into one point, by the events' times.

    Example:
        >>> Points().take(Evaluated(step=8, epoch=1, metrics={"loss": 0.5}, time=2.0))
        Point(kind=<Kind.EVALUATION: 'evaluation'>, step=8, epoch=1, time=2.0, training={}, \
validation={'loss': 0.5})
    """

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._gathered: list[StepCommitted] = []
        self._since = 0.0

    def take(self, event: Event) -> Point | None:
        """Return the point an event makes, if it makes one."""
        match event:
            case JobStarted():
                # What came before was taken back, or told.
                self._gathered, self._since = [], event.time
            # Of batches whose records were all left out there is nothing to show.
            case StepCommitted() if event.num_records:
                self._gathered.append(event)
                if event.time - self._since >= self._interval_s:
                    return self._steps()
            case EpochFinished():
                metrics = flat(event.metrics)
                return Point(
                    Kind.EPOCH,
                    event.step,
                    event.epoch,
                    event.time,
                    training={k: v for k, v in metrics.items() if not k.startswith(_VALIDATION)},
                    validation={
                        name.removeprefix(_VALIDATION): value
                        for name, value in metrics.items()
                        if name.startswith(_VALIDATION)
                    },
                )
            case Evaluated():
                return Point(
                    Kind.EVALUATION,
                    event.step,
                    event.epoch,
                    event.time,
                    validation=flat(event.metrics),
                )
            case RoundFinished():
                training = {**flat(event.metrics), "num_parties": float(len(event.parties))}
                return Point(Kind.EPOCH, event.step, event.step - 1, event.time, training=training)
            case _:
                pass
        return None

    def _steps(self) -> Point:
        events, last = self._gathered, self._gathered[-1]
        self._gathered, self._since = [], last.time
        num_records = sum(event.num_records for event in events)
        seconds = sum(
            event.num_records / event.records_per_s for event in events if event.records_per_s
        )
        values = {
            "loss": sum(event.loss * event.num_records for event in events) / max(1, num_records)
        }
        if seconds:
            values["records_per_s"] = num_records / seconds
        return Point(Kind.STEPS, last.step, last.epoch, last.time, training=values)


def status_of(event: Event) -> tuple[Status, str] | None:
    """Return how an attempt ended, and what went wrong; None if the event is no end.

    Example:
        >>> status_of(JobFailed(kind="DataError", message="no such file", time=0.0))
        (<Status.FAILED: 'FAILED'>, 'DataError: no such file')
    """
    match event:
        case JobFinished():
            return Status.FINISHED, ""
        case JobFailed(kind=kind) if kind == _INTERRUPTED:
            return Status.KILLED, ""
        case JobFailed(kind=kind, message=message):
            return Status.FAILED, f"{kind}: {message}"
        case _:
            return None


def flat(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as single numbers: of a list each element by its number.

    Example:
        >>> flat({"loss": 1, "iou": [0.5, 0.7], "iou_1": 0.9})
        {'loss': 1.0, 'iou_0': 0.5, 'iou_1_': 0.7, 'iou_1': 0.9}
    """
    values: dict[str, float] = {}
    for name, value in metrics.items():
        for path, number in _numbers(value):
            key = "_".join([name, *path])
            # The name of another metric: that one keeps it.
            while path and (key in metrics or key in values):
                key += "_"
            values[key] = number
    return values


def _numbers(value: Any) -> Iterable[tuple[tuple[str, ...], float]]:
    if hasattr(value, "tolist"):  # numpy's, without importing numpy
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return [((), float(value))]
    return [
        ((str(number), *path), leaf)
        for number, item in enumerate(value)
        for path, leaf in _numbers(item)
    ]
