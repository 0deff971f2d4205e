"""When a job stood still, for how long, and what was going on then.

A stall is a stretch without a committed step that is much longer than usual. The log tells steps
about once a second; newer logs also say how long the longest pause between two commits was, which
finds stalls shorter than a second and leaves out the pause of the telling.

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

TOLD_LATE_S = 3.0
"""How much later than it was made a step may be told of: a worker's commits count when a later one
confirms them, and are fetched once a second."""

_LEAST_S = 2.0
_TIMES_USUAL = 4.0
_MOST = 200


@dataclass(frozen=True)
class Stall:
    """A stretch in which no step was committed.

    Attributes:
        start: When it began, as far as is known, in seconds since 1970-01-01 UTC.
        stop: When the first step after it was told.
        seconds: How long the training stood still.
        cause: What happened then, for people.
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
    """Return the stalls of a job, the longest ones if they are many, oldest first.

    Args:
        time: When steps were told, rising within an attempt.
        longest_s: The longest pause between two commits of each; 0 if unknown.
        attempt: Of each.
        stays: Workers' times in slots.
        checkpoints: What was saved.
        evaluations: What was evaluated.
    """
    if len(time) < 2:  # noqa: PLR2004 - a pause is between two
        return []
    gaps = np.diff(time)
    usual = float(np.median(gaps))
    # The pause itself where it is known; else the time between two tellings, less a usual one.
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
                min(float(time[at]), float(time[at + 1] - seconds[at])) - TOLD_LATE_S,
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
            causes.append("the validation data were evaluated")
        causes += [
            f"a checkpoint of step {event.step:,} was written"
            for event in checkpoints
            if start <= event.time <= stop and event.blocked_s > _LEAST_S / 4
        ]
    return "; ".join(causes) or "cause unknown"
