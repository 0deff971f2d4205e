"""Lanes: the state of each rank of a job over time, and the reasons for its changes.

    events of a worker     started     joined     first batch                 left
    state between them           starting    joining      training or behind      lost, until its
                                                                                  successor joins

A `RankTenure` is the period in which a worker holds a rank. Its state is `joining` until its first
committed batch (`starting` in a job without workers), and `behind` while others commit batches and
it has committed none for a while. All of this is derived from the log.

Pure. Callers: `history.py` collects the tenures, `view.py` shows the lanes.
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
        gaps: (Start, end) of each long period in which it committed no batch.
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
        """End the period: record when and why the worker left."""
        self.left, self.reason, self.step, self.is_lost = time, reason, step, is_lost


@dataclass(frozen=True)
class Segment:
    """Part of a lane, the timeline of one rank, during which its state does not change.

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
    tenures: Sequence[RankTenure], activity: Activity, end: float
) -> tuple[list[dict[str, Any]], int]:
    """Build the lanes (a timeline of states per rank); also return how many were left out.

    Args:
        tenures: All periods in which a worker held a rank, ordered by their start.
        activity: Periods in which the job trained; outside of them, no worker counts as behind.
        end: End of the lanes of workers that are still present.

    Returns:
        The rank and the last segments (at most `_MAX_SEGMENTS`) of each lane, and the number of
        lanes left out. If there are more than `_MAX_LANES`, the ranks with the largest number of
        successive workers are kept.
    """
    by_rank: dict[int, list[RankTenure]] = {}
    for tenure in tenures:
        by_rank.setdefault(tenure.rank, []).append(tenure)
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


def _segments(tenures: Sequence[RankTenure], activity: Activity, end: float) -> list[Segment]:
    segments: list[Segment] = []
    for number, tenure in enumerate(tenures):
        name = _name_of(tenure)
        stop = end if tenure.left is None else tenure.left
        free_since = segments[-1].stop if segments else 0.0
        begun = max(tenure.started or tenure.joined, free_since)
        if begun < tenure.joined:
            text = f"{name}: starting the process and building the model"
            segments.append(Segment(begun, tenure.joined, "starting", text))
        trains = (
            stop
            if tenure.first_batch is None
            else max(min(tenure.first_batch, stop), tenure.joined)
        )
        if trains > tenure.joined:
            kind = "joining" if tenure.incarnation else "starting"
            text = (
                "joining: receiving the model's state"
                if tenure.incarnation
                else "building the model"
            )
            segments.append(Segment(tenure.joined, trains, kind, f"{name}: {text}"))
        at = trains
        for first, last in activity.behind(tenure):
            if at < first:
                segments.append(Segment(at, first, "training", f"{name}: training"))
            segments.append(
                Segment(max(at, first), last, "behind", f"{name}: behind, no batch committed")
            )
            at = last
        if stop > at or stop == trains == tenure.joined:
            why = "" if tenure.left is None else f"; then {tenure.reason}"
            segments.append(Segment(at, max(stop, at), "training", f"{name}: training{why}"))
        if tenure.left is not None and tenure.is_lost:
            following = tenures[number + 1] if number + 1 < len(tenures) else None
            until = end if following is None else following.joined
            same = following is None or following.attempt == tenure.attempt
            if same and until > stop:
                text = f"{name} {tenure.reason}"
                segments.append(Segment(stop, until, "lost", text))
    return segments


class Activity:
    """The times when a job trained: a worker without batches is only behind if others trained.

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

    def behind(self, tenure: RankTenure) -> list[tuple[float, float]]:
        """Return the periods (start, stop) in which the worker of a tenure fell behind.

        In these periods, the worker committed no batch, but other workers did.
        """
        if not tenure.gaps:
            return []
        first, last = np.searchsorted(self._logged, np.array(tenure.gaps)).T
        last = np.minimum(last, len(self._logged) - 1)
        trained = self._trained[last] - self._trained[first]
        is_behind = (last - first > 1) & (trained > GAP_S)
        return [tenure.gaps[at] for at in np.flatnonzero(is_behind).tolist()]


def _name_of(tenure: RankTenure) -> str:
    if not tenure.incarnation:
        return f"process {tenure.pid}" if tenure.pid else "process"
    where = f" on {tenure.host}" if tenure.host else ""
    return f"worker {tenure.rank} (process {tenure.pid}{where})"
