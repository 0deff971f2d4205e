"""Lanes: the state of each rank of a job over time, and the reasons for its changes.

    started --> joined --> first batch --> ... --> left
     starting    joining     training      (behind)      lost, until the next one joins

A `RankTenure` is the period in which a worker holds a rank. Its state is `joining` until its first
committed batch, and `behind` while others commit batches and it has committed none for a while. All
of this is derived from the log.

Pure. Callers: `history.py` keeps the stays, `view.py` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Committed batches are logged about once a second, so shorter gaps are an artifact of the logging.
GAP_S = 3.0
_MAX_LANES = 64
_MAX_SEGMENTS = 400


@dataclass
class RankTenure:
    """Period in which a worker holds a rank.

    Attributes:
        rank: The rank: the worker's position in the job, from 0, which its replacement takes over.
        incarnation: Number of the worker's process, from 1; 0 for a job without workers.
        attempt: Attempt of the job.
        joined: When the worker got the rank, in seconds since 1970-01-01 UTC.
        host: Machine of the worker.
        pid: Process ID of the worker.
        started: When its process was started; 0 if unknown.
        replaces: Number of the process that had the rank before; 0 if there was none.
        first_batch: When its first batch was logged; None before that.
        left: When it left; None while it is present.
        reason: Why it left.
        step: Number of updates when it left.
        is_lost: Whether it left while the job still needed it.
        gaps: Periods without batches, between periods with batches.
    """

    rank: int
    incarnation: int
    attempt: int
    joined: float
    host: str = ""
    pid: int = 0
    started: float = 0.0
    replaces: int = 0
    first_batch: float | None = None
    left: float | None = None
    reason: str = ""
    step: int = 0
    is_lost: bool = False
    gaps: list[tuple[float, float]] = field(default_factory=list)

    def end(self, time: float, reason: str, *, step: int = 0, is_lost: bool = False) -> None:
        """Record when and why the worker left."""
        self.left, self.reason, self.step, self.is_lost = time, reason, step, is_lost


@dataclass(frozen=True)
class Segment:
    """Period of a lane (the timeline of one rank) with one state.

    Attributes:
        start: Start of the period, in seconds since 1970-01-01 UTC.
        stop: End of the period, likewise.
        kind: `starting`, `joining`, `training`, `behind` or `lost`.
        text: Description for the user.
    """

    start: float
    stop: float
    kind: str
    text: str

    def to_json(self) -> list[Any]:
        """Convert the segment to JSON values."""
        return [self.start, self.stop, self.kind, self.text]


def lanes(
    stays: Sequence[RankTenure], activity: Activity, end: float
) -> tuple[list[dict[str, Any]], int]:
    """Build the lanes (a timeline of states per rank); also return how many were left out.

    Args:
        stays: Tenures of all ranks, ordered by their start.
        activity: Periods in which the job trained; outside of them, no worker counts as behind.
        end: End of the lanes of workers that are still present.

    Returns:
        The rank and the segments of each lane. If there are more than `_MAX_LANES`, those whose
        rank was held by most workers.
    """
    by_rank: dict[int, list[RankTenure]] = {}
    for stay in stays:
        by_rank.setdefault(stay.rank, []).append(stay)
    chosen = sorted(by_rank)
    if len(chosen) > _MAX_LANES:
        eventful = sorted(chosen, key=lambda rank: (-len(by_rank[rank]), rank))
        chosen = sorted(eventful[:_MAX_LANES])
    shown = [
        {
            "rank": rank,
            "segments": [segment.to_json() for segment in _segments(by_rank[rank], activity, end)][
                -_MAX_SEGMENTS:
            ],
        }
        for rank in chosen
    ]
    return shown, len(by_rank) - len(chosen)


def _segments(stays: Sequence[RankTenure], activity: Activity, end: float) -> list[Segment]:
    segments: list[Segment] = []
    for number, stay in enumerate(stays):
        name = _name_of(stay)
        stop = end if stay.left is None else stay.left
        free_since = segments[-1].stop if segments else 0.0
        begun = max(stay.started or stay.joined, free_since)
        if begun < stay.joined:
            text = f"{name}: starting the process and building the model"
            segments.append(Segment(begun, stay.joined, "starting", text))
        trains = stop if stay.first_batch is None else max(min(stay.first_batch, stop), stay.joined)
        if trains > stay.joined:
            kind = "joining" if stay.incarnation else "starting"
            text = (
                "joining: receiving the model's state" if stay.incarnation else "building the model"
            )
            segments.append(Segment(stay.joined, trains, kind, f"{name}: {text}"))
        at = trains
        for first, last in activity.behind(stay):
            if at < first:
                segments.append(Segment(at, first, "training", f"{name}: training"))
            segments.append(
                Segment(max(at, first), last, "behind", f"{name}: behind, no batch committed")
            )
            at = last
        if stop > at or stop == trains == stay.joined:
            why = "" if stay.left is None else f"; then {stay.reason}"
            segments.append(Segment(at, max(stop, at), "training", f"{name}: training{why}"))
        if stay.left is not None and stay.is_lost:
            following = stays[number + 1] if number + 1 < len(stays) else None
            until = end if following is None else following.joined
            same = following is None or following.attempt == stay.attempt
            if same and until > stop:
                text = f"{name} {stay.reason}"
                segments.append(Segment(stop, until, "lost", text))
    return segments


class Activity:
    """Knows when a job trained and when it paused, to find workers that fell behind the others.

    Args:
        logged: When steps were logged, ascending, in seconds since 1970-01-01 UTC.
    """

    def __init__(self, logged: npt.NDArray[np.float64]) -> None:
        self._logged = logged
        lengths = np.diff(logged)
        # Longer than twice the usual interval is a pause, such as an evaluation.
        limit = max(GAP_S, 2 * float(np.median(lengths))) if len(lengths) else GAP_S
        trained = np.where((lengths > 0) & (lengths <= limit), lengths, 0.0)
        self._trained = np.append(0.0, np.cumsum(trained))

    def behind(self, stay: RankTenure) -> list[tuple[float, float]]:
        """Return the periods (start, stop) in which a worker committed no batch, unlike others."""
        if not stay.gaps:
            return []
        first, last = np.searchsorted(self._logged, np.array(stay.gaps)).T
        last = np.minimum(last, len(self._logged) - 1)
        trained = self._trained[last] - self._trained[first]
        is_behind = (last - first > 1) & (trained > GAP_S)
        return [stay.gaps[at] for at in np.flatnonzero(is_behind).tolist()]


def _name_of(stay: RankTenure) -> str:
    if not stay.incarnation:
        return f"process {stay.pid}" if stay.pid else "process"
    where = f" on {stay.host}" if stay.host else ""
    return f"worker {stay.rank} (process {stay.pid}{where})"
