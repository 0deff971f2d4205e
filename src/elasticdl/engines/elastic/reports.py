"""What a worker keeps for the controller until it has been fetched.

Every worker keeps the events since those the controller has, whoever hands them out: so the
next in line can go on where one that died has stopped. An event is handed out when the commit
it belongs to is confirmed, that is, when a later quorum was of the same lineage.

Callers: `worker.py`; the loop writes into it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.checkpoint import SavedCheckpoint
from elasticdl.events import Event, from_json, to_json

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint
    from elasticdl.training.trainer import State


WAITING = "waiting for the others"
"""What a worker is doing that has asked who takes part in the next step."""


@dataclass(frozen=True, order=True)
class Point:
    """A state of the run: how many commits led to it, and which.

    Attributes:
        num_commits: Since the workers were started.
        lineage: Hash of their history.
    """

    num_commits: int
    lineage: int


@dataclass(frozen=True)
class Report:
    """A worker's answer to the controller.

    Attributes:
        point: Where its state is.
        confirmed: Up to where its history will not change any more.
        continues: Its history contains the point the controller has asked about.
        events: What happened from there up to `confirmed`, with their points.
        slots: Who took part in its last commit.
        step: Updates in its model.
        has_snapshot: A checkpoint waits to be fetched.
        doing: What it is busy with.
        doing_s: ... for how long.
        slowest_s: The longest that a batch took there.
        warnings: What it has warned of so far.
    """

    point: Point
    confirmed: Point
    continues: bool
    events: Sequence[tuple[Point, Event]] = ()
    slots: Sequence[int] = ()
    step: int = 0
    has_snapshot: bool = False
    doing: str = ""
    doing_s: float = 0.0
    slowest_s: float = 0.0
    warnings: Sequence[str] = ()


class History:
    """The events since those the controller has; an `EventSink`.

    Args:
        start: Where the run begins.
    """

    def __init__(self, start: Point) -> None:
        self._lock = threading.Lock()
        self._points = [start]
        self._told: list[tuple[Point, Event]] = []
        self._undone: set[Point] = set()
        self._finished = False

    def write(self, event: Event) -> None:
        """Keep an event of the state as it is now."""
        with self._lock:
            self._told.append((self._points[-1], event))

    def publish(self) -> None:
        """Do nothing: the controller fetches."""

    def committed(self, point: Point) -> None:
        """Enter a commit."""
        with self._lock:
            self._points.append(point)

    def finish(self) -> None:
        """Say that no commit follows, so that nothing is left to confirm the last one."""
        with self._lock:
            self._finished = True

    @property
    def point(self) -> Point:
        """Where the state is."""
        return self._points[-1]

    @property
    def confirmed(self) -> Point:
        """Up to where it will not change any more; at the very start, where it begins."""
        with self._lock:
            return self._points[max(0, self._num_confirmed() - 1)]

    def is_undone(self, point: Point) -> bool:
        """Return whether this worker was there and has taken over another history since."""
        return point in self._undone

    def _num_confirmed(self) -> int:
        return len(self._points) - (0 if self._finished else 1)

    def since(self, known: Point | None) -> tuple[bool, Point, list[tuple[Point, Event]]]:
        """Return whether this history contains a point, what is confirmed, and what happened.

        What came before the point is forgotten: the controller has it.

        Args:
            known: Up to where the controller has the events; None if it has none.
        """
        with self._lock:
            num_confirmed = self._num_confirmed()
            confirmed = self._points[max(0, num_confirmed - 1)]
            if known is not None:
                if known not in self._points:
                    return False, confirmed, []
                self._points = self._points[self._points.index(known) :]
                self._told = [(point, event) for point, event in self._told if point > known]
            events = [(p, e) for p, e in self._told if p <= confirmed]
            return True, confirmed, events if num_confirmed else []

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for a worker that joins."""
        with self._lock:
            return {
                "points": [[p.num_commits, p.lineage] for p in self._points],
                "told": [[p.num_commits, p.lineage, to_json(e)] for p, e in self._told],
            }

    def take_over(self, values: Mapping[str, Any]) -> None:
        """Make a peer's history this worker's own."""
        with self._lock:
            points = [Point(*pair) for pair in values["points"]]
            # All but the last one are certain, and the peer's too, told or not.
            self._undone |= {self._points[-1]} - set(points)
            self._points = points
            self._told = [
                (Point(num_commits, lineage), from_json(text))
                for num_commits, lineage, text in values["told"]
            ]


@dataclass
class Snapshots:
    """The checkpoint that waits for the controller; a `CheckpointSink`.

    A newer one takes the place of one that nobody fetched, except that the best is kept, and
    the last one that is certain until a newer one is: with a checkpoint at every commit the
    newest never is.
    """

    history: History
    requested: bool = False
    _waiting: list[Snapshot] = field(default_factory=list)
    _taken: list[SavedCheckpoint] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def save_in_background(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Keep one."""
        confirmed = self.history.confirmed
        with self._lock:
            self.requested = False
            certain = self._certain(confirmed)[-1:]
            self._waiting = [s for s in self._waiting if s in certain or (s.best and not best)]
            self._waiting.append(Snapshot(self.history.point, checkpoint, best))
            self._taken.append(SavedCheckpoint(checkpoint.step, 0, 0.0, 0.0))

    def wait(self) -> None:
        """Do nothing: the controller writes."""

    def take_saved(self) -> list[SavedCheckpoint]:
        """Return the copies taken since the last call, so that the loop tells where it was.

        No event may span a copy. How large its file is, the controller tells when it is written.
        """
        with self._lock:
            taken, self._taken = self._taken, []
        return taken

    def first_confirmed(self, confirmed: Point) -> Snapshot | None:
        """Return the best or else the newest whose state will stay history, without taking it."""
        with self._lock:
            certain = self._certain(confirmed)
            return next((s for s in certain if s.best or s is certain[-1]), None)

    def take(self, confirmed: Point) -> Snapshot | None:
        """Return what `first_confirmed` does, and forget it and those it makes needless."""
        found = self.first_confirmed(confirmed)
        if found is not None:
            with self._lock:
                self._waiting = [s for s in self._waiting if s.point > found.point]
        return found

    def _certain(self, confirmed: Point) -> list[Snapshot]:
        return [
            s for s in self._waiting if s.point <= confirmed and not self.history.is_undone(s.point)
        ]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A checkpoint and where it belongs.

    Attributes:
        point: The state it was taken of.
        checkpoint: The copy.
        best: Whether it is the best so far.
        published: What of the model is to be published otherwise than it was trained.
    """

    point: Point
    checkpoint: Checkpoint
    best: bool
    published: State = field(default_factory=dict)
