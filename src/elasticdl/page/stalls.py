"""Stalls of a job: when it made no progress, for how long, and what happened then.

A stall is an unusually long period without a committed step. Steps are logged about once a second;
newer logs also contain the longest pause between two commits, which reveals stalls shorter than a
second and is not affected by the logging interval.

Pure. Callers: `view.py`, `findings.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from elasticdl.events import Checkpointed, Evaluated
    from elasticdl.page.lanes import Stay

LOG_DELAY_S = 3.0
"""Maximum delay between a step and its log entry, in seconds: a worker's commits count when a later
one confirms them, and are fetched once a second."""

_LEAST_S = 2.0
_TIMES_USUAL = 4.0
_MOST = 200


@dataclass(frozen=True)
class Stall:
    """A period in which no step was committed.

    Attributes:
        start: Estimated start, in seconds since 1970-01-01 UTC.
        stop: When the first step after it was logged.
        seconds: How long the training made no progress.
        cause: What happened then, in words.
    """

    start: float
    stop: float
    seconds: float
    cause: str


def find_stalls(
    time: npt.NDArray[np.float64],
    longest_s: npt.NDArray[np.float64],
    attempt: npt.NDArray[np.int32],
    *,
    stays: Sequence[Stay],
    checkpoints: Sequence[Checkpointed],
    evaluations: Sequence[Evaluated],
) -> list[Stall]:
    """Return the stalls of a job, oldest first; only the longest ones if there are many.

    Args:
        time: When steps were logged, ascending within an attempt.
        longest_s: The longest pause between two commits for each entry; 0 if unknown.
        attempt: Attempt of each entry.
        stays: Workers' times in slots.
        checkpoints: Checkpoints of the job.
        evaluations: Evaluations of the job.
    """
    if len(time) < 2:  # noqa: PLR2004 - a pause is between two
        return []
    gaps = np.diff(time)
    usual = float(np.median(gaps))
    # The logged pause if known, else the time between two log entries minus the usual interval.
    seconds = np.where(longest_s[1:] > 0, longest_s[1:], np.maximum(0.0, gaps - usual))
    ordinary = float(np.median(seconds)) if (longest_s[1:] > 0).any() else usual
    is_long = (seconds > max(_LEAST_S, _TIMES_USUAL * ordinary)) & (attempt[1:] == attempt[:-1])
    found = np.flatnonzero(is_long)
    if len(found) > _MOST:
        found = np.sort(found[np.argsort(seconds[found])[-_MOST:]])
    return [
        Stall(
            start=min(float(time[at]), float(time[at + 1] - seconds[at])),
            stop=float(time[at + 1]),
            seconds=float(seconds[at]),
            cause=_cause(
                min(float(time[at]), float(time[at + 1] - seconds[at])) - LOG_DELAY_S,
                float(time[at + 1]),
                stays,
                checkpoints,
                evaluations,
            ),
        )
        for at in found.tolist()
    ]


def _cause(
    start: float,
    stop: float,
    stays: Sequence[Stay],
    checkpoints: Sequence[Checkpointed],
    evaluations: Sequence[Evaluated],
) -> str:
    causes = [
        f"worker {stay.slot} {stay.reason}"
        for stay in stays
        if stay.is_lost and stay.left is not None and start <= stay.left <= stop
    ]
    causes += [
        f"worker {stay.slot} joined"
        for stay in stays
        if start <= stay.joined <= stop and not causes
    ]
    if not causes:
        if any(start <= event.time <= stop for event in evaluations):
            causes.append("the validation data was evaluated")
        causes += [
            f"a checkpoint of step {event.step:,} was written"
            for event in checkpoints
            if start <= event.time <= stop and event.blocked_s > _LEAST_S / 4
        ]
    return "; ".join(causes) or "cause unknown"
