"""Converts events to points (`MetricPoint`: metrics at one moment), which trackers record.

All times are those of the events; the clock is never read.

EpochFinished -> a point with the training metrics (and the latest validation metrics)
Evaluated     -> a point with the validation metrics
StepCommitted -> one point for all steps of ten seconds, so that a long epoch can be followed
RoundFinished -> a point with the training metrics of the parties, one per round
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
from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus

if TYPE_CHECKING:
    from elasticdl.events import Event

_INTERVAL_S = 10.0
_INTERRUPTED = "Interrupted"
_VALIDATION = "val_"


class Points:
    """Converts the events of a job, in order, to the points that trackers record.

    Args:
        interval_s: Length of an interval in seconds. All steps in an interval become one point, so
            that trackers are not flooded.

    Example:
        >>> Points().take(Evaluated(step=8, epoch=1, metrics={"loss": 0.5}, time=2.0))
        MetricPoint(kind=<Kind.EVALUATION: 'evaluation'>, step=8, epoch=1, time=2.0, training={}, \
validation={'loss': 0.5})
    """

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._gathered: list[StepCommitted] = []
        self._since = 0.0

    def take(self, event: Event) -> MetricPoint | None:
        """Convert the next event to a point; None if it does not produce one."""
        match event:
            case JobStarted():
                # Earlier events were rolled back, or have been sent.
                self._gathered, self._since = [], event.time
            # Steps whose records were all left out have no values.
            case StepCommitted() if event.num_records:
                self._gathered.append(event)
                if event.time - self._since >= self._interval_s:
                    return self._steps()
            case EpochFinished():
                metrics = flat(event.metrics)
                return MetricPoint(
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
                return MetricPoint(
                    Kind.EVALUATION,
                    event.step,
                    event.epoch,
                    event.time,
                    validation=flat(event.metrics),
                )
            case RoundFinished():
                training = {**flat(event.metrics), "num_parties": float(len(event.parties))}
                return MetricPoint(
                    Kind.EPOCH, event.step, event.step - 1, event.time, training=training
                )
            case _:
                pass
        return None

    def _steps(self) -> MetricPoint:
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
        return MetricPoint(Kind.STEPS, last.step, last.epoch, last.time, training=values)


def status_of(event: Event) -> tuple[RunStatus, str] | None:
    """Return (status, error message) if an event is the end of an attempt; otherwise None.

    Example:
        >>> status_of(JobFailed(kind="DataError", message="no such file", time=0.0))
        (<RunStatus.FAILED: 'FAILED'>, 'DataError: no such file')
    """
    match event:
        case JobFinished():
            return RunStatus.FINISHED, ""
        case JobFailed(kind=kind) if kind == _INTERRUPTED:
            return RunStatus.KILLED, ""
        case JobFailed(kind=kind, message=message):
            return RunStatus.FAILED, f"{kind}: {message}"
        case _:
            return None


def flat(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Flatten metrics to single numbers.

    The elements of a list are named by their index. If another metric has that name, `_` is added.

    Example:
        >>> flat({"loss": 1, "iou": [0.5, 0.7], "iou_1": 0.9})
        {'loss': 1.0, 'iou_0': 0.5, 'iou_1_': 0.7, 'iou_1': 0.9}
    """
    values: dict[str, float] = {}
    for name, value in metrics.items():
        for path, number in _numbers(value):
            key = "_".join([name, *path])
            # The key is the name of another metric, which takes precedence.
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
