"""Stalls of a job: periods without progress, their lengths and their causes.

A stall is an unusually long period without a committed step. Steps are logged about once a second;
newer logs also contain the longest pause between two commits, which reveals stalls shorter than a
second and is not affected by the logging interval.

Pure. Callers: `view.py`, `findings.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from elasticdl.page.words import brief

if TYPE_CHECKING:
    from elasticdl.events import Checkpointed, Evaluated
    from elasticdl.page.timelines import RankTenure

LOG_DELAY_S = 3.0
"""Maximum delay between a step and its log entry, in seconds: a worker's commits count when a later
one confirms them, and are fetched once a second."""

_MIN_S = 2.0
_TIMES_USUAL = 4.0


@dataclass(frozen=True)
class Stall:
    """A period in which no step was committed.

    Attributes:
        start: Estimated start, in seconds since 1970-01-01 UTC.
        stop: When the first step after it was logged.
        seconds: Duration without progress.
        cause: The likely cause: what the log reports for this period, in words.
        is_planned: Whether an evaluation or a checkpoint is the cause.
    """

    start: float
    stop: float
    seconds: float
    cause: str
    is_planned: bool = False


def find_stalls(
    time: npt.NDArray[np.float64],
    longest_s: npt.NDArray[np.float64],
    attempt: npt.NDArray[np.int32],
    *,
    tenures: Sequence[RankTenure],
    checkpoints: Sequence[Checkpointed],
    evaluations: Sequence[Evaluated],
    behind: Sequence[tuple[float, int]] = (),
) -> list[Stall]:
    """Find the stalls of a job and their causes, oldest first.

    Args:
        time: When steps were logged, ascending within an attempt.
        longest_s: For each entry of `time`, the longest pause in seconds between two commits since
            the entry before; 0 if unknown.
        attempt: For each entry of `time`, the attempt that logged it.
        tenures: Periods in which workers held ranks, to find stalls caused by lost or joining ones.
        checkpoints: Checkpoints of the job.
        evaluations: Evaluations of the job.
        behind: (time, rank) of each worker that stopped committing while others continued: its last
            commit before that, and its rank.
    """
    if len(time) < 2:  # noqa: PLR2004 - a pause is between two
        return []
    gaps = np.diff(time)
    usual = float(np.median(gaps))
    # The logged pause if known, else the time between two log entries minus the usual interval.
    seconds = np.where(longest_s[1:] > 0, longest_s[1:], np.maximum(0.0, gaps - usual))
    ordinary = float(np.median(seconds)) if (longest_s[1:] > 0).any() else usual
    is_long = (seconds > max(_MIN_S, _TIMES_USUAL * ordinary)) & (attempt[1:] == attempt[:-1])
    found = np.flatnonzero(is_long)
    lost = _Timeline(
        (tenure.left, f"worker {tenure.rank} {brief(tenure.reason)}")
        for tenure in tenures
        if tenure.is_lost and tenure.left is not None
    )
    joined = _Timeline((tenure.joined, f"worker {tenure.rank} joined") for tenure in tenures)
    evaluated = _Timeline(
        (event.time, "the validation data was evaluated") for event in evaluations
    )
    written = _Timeline(
        (event.time, f"a checkpoint of step {event.step:,} was written")
        for event in checkpoints
        if event.blocked_s > _MIN_S / 4
    )
    silent = _Timeline((since, f"worker {rank} did not answer") for since, rank in behind)
    stalls, explained = [], 0.0
    for at in found.tolist():
        start, stop = min(float(time[at]), float(time[at + 1] - seconds[at])), float(time[at + 1])
        since = start - LOG_DELAY_S
        causes, is_planned = lost.within(since, stop) or joined.within(since, stop), False
        # An evaluation explains the first stall after it, not also the next one.
        near = evaluated.within(max(since, explained), stop)
        explained = stop if near else explained
        if not causes:
            causes = [*near[:1], *written.within(since, stop)]
            is_planned = bool(causes)
        cause = "; ".join(causes or silent.within(start, stop)) or "cause unknown"
        stalls.append(Stall(start, stop, float(seconds[at]), cause, is_planned))
    return stalls


class _Timeline:
    """Descriptions of events, for finding those that happened within a period.

    Args:
        texts: (time, description) of each event, in any order.
    """

    def __init__(self, texts: Iterable[tuple[float, str]]) -> None:
        self._texts = sorted(texts)
        self._times = [time for time, _ in self._texts]

    def within(self, start: float, stop: float) -> list[str]:
        """Return the descriptions of the events from `start` to `stop`, as possible causes."""
        first, last = bisect_left(self._times, start), bisect_right(self._times, stop)
        return [text for _, text in self._texts[first:last]]
