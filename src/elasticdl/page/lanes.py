"""Workers over time: what each place of a job was doing, and why it changed.

    started --> joined --> first batch --> ... --> left
     starting    joining     training      (behind)      lost, until the next one joins

A worker's time in a slot is a `Stay`. Its first committed batch ends the joining; where others
committed batches and it had none for a while, it was behind. All of it is from the log.

Pure. Callers: `history.py` keeps the stays, `view.py` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# A worker that commits in each step is told of each second: what is shorter is the telling.
GAP_S = 3.0
_MOST_LANES = 64
_MOST_SEGMENTS = 400


@dataclass
class Stay:
    """A worker's time in a slot.

    Attributes:
        slot: The slot.
        incarnation: Which process of the attempt it is; 0 for a job without workers.
        attempt: Of the job.
        joined: When it got the slot, in seconds since 1970-01-01 UTC.
        host: Its machine.
        pid: Its process.
        started: When its process was started; 0 if unknown.
        replaces: Number of the process that had the slot before; 0 if none had.
        first_batch: When its first batch was told; None before.
        left: When it left; None while it is there.
        reason: Why it left.
        step: Updates made when it left.
        is_lost: It left while the job needed it.
        gaps: When it had no batches, though it had some before and after.
        num_batches: Batches that it committed.
    """

    slot: int
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
    num_batches: int = 0

    def end(self, time: float, reason: str, *, step: int = 0, is_lost: bool = False) -> None:
        """Note that it left."""
        self.left, self.reason, self.step, self.is_lost = time, reason, step, is_lost


@dataclass(frozen=True)
class Segment:
    """A stretch of a lane.

    Attributes:
        start: In seconds since 1970-01-01 UTC.
        stop: As well.
        kind: `starting`, `joining`, `training`, `behind` or `lost`.
        text: What it was, for people.
    """

    start: float
    stop: float
    kind: str
    text: str

    def to_json(self) -> list[Any]:
        """Return the segment for JSON."""
        return [self.start, self.stop, self.kind, self.text]


def lanes(
    stays: Sequence[Stay], stalls: Sequence[tuple[float, float]], end: float
) -> tuple[list[dict[str, Any]], int]:
    """Return the lane of each slot, and how many are not among them.

    Args:
        stays: In the order in which they began.
        stalls: When nobody committed anything: then nobody was behind.
        end: Where lanes of those that are there end.

    Returns:
        Of each lane its slot and its segments. Where there are very many workers, the lanes in
        which something happened.
    """
    by_slot: dict[int, list[Stay]] = {}
    for stay in stays:
        by_slot.setdefault(stay.slot, []).append(stay)
    chosen = sorted(by_slot)
    if len(chosen) > _MOST_LANES:
        eventful = sorted(chosen, key=lambda slot: (-len(by_slot[slot]), slot))
        chosen = sorted(eventful[:_MOST_LANES])
    shown = [
        {
            "slot": slot,
            "segments": [segment.to_json() for segment in _segments(by_slot[slot], stalls, end)][
                -_MOST_SEGMENTS:
            ],
        }
        for slot in chosen
    ]
    return shown, len(by_slot) - len(chosen)


def _segments(
    stays: Sequence[Stay], stalls: Sequence[tuple[float, float]], end: float
) -> list[Segment]:
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
        for first, last in stay.gaps:
            if any(low < last and high > first for low, high in stalls):
                continue
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


def _name_of(stay: Stay) -> str:
    if not stay.incarnation:
        return f"process {stay.pid}" if stay.pid else "process"
    where = f" on {stay.host}" if stay.host else ""
    return f"worker {stay.slot} (process {stay.pid}{where})"
