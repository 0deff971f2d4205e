"""Buffer of a worker's events and checkpoints until the controller has fetched them.

Every worker logs the same events, but the controller fetches them from only one worker at a time.
All workers keep the events that it has not fetched yet, so that it can fetch them from another
worker if that one dies. An event is handed out only once its commit is confirmed: that is the case
as soon as the worker has made another commit after it.

Callers: `worker.py`; the loop writes into it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.checkpoint_store import SavedCheckpoint
from elasticdl.events import Event, from_json, to_json

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.training.trainer import State


WAITING = "waiting for the others"
"""Activity of a worker that waits for the quorum of the next step."""


@dataclass(frozen=True, order=True)
class CommitId:
    """Identifies a commit in the history of a run, by its number and a hash of all commits so far.

    Attributes:
        num_commits: Number of commits since the workers were started.
        lineage: Hash of all commits up to and including this one. Two workers with the same lineage
            have made the same commits.
    """

    num_commits: int
    lineage: int


@dataclass(frozen=True)
class WorkerReport:
    """A worker's progress report to the controller.

    Attributes:
        point: The worker's latest commit.
        confirmed: The last commit that is final. If `point` is a later one, it may still be undone,
            by taking over a peer's state.
        continues: Whether the worker's history contains the last commit in the event log, whose ID
            the controller sends with its request. Otherwise its events do not fit the log.
        events: Events after that commit and up to `confirmed`, each with its commit.
        ranks: Ranks that took part in the worker's last commit.
        step: Number of updates in its model.
        has_snapshot: Whether a checkpoint is ready to be fetched.
        doing: Description of what the worker does now.
        doing_s: Seconds since it began to do so.
        slowest_s: Longest time that a batch took on this worker, in seconds.
        warnings: Texts of the distinct warnings that were logged in its process so far.
    """

    point: CommitId
    confirmed: CommitId
    continues: bool
    events: Sequence[tuple[CommitId, Event]] = ()
    ranks: Sequence[int] = ()
    step: int = 0
    has_snapshot: bool = False
    doing: str = ""
    doing_s: float = 0.0
    slowest_s: float = 0.0
    warnings: Sequence[str] = ()


class EventBuffer:
    """Buffer of a worker's events until the controller has fetched them; an `EventSink`.

    Args:
        start: The `CommitId` of the state in which the run begins.
    """

    def __init__(self, start: CommitId) -> None:
        self._lock = threading.Lock()
        self._points = [start]
        self._events: list[tuple[CommitId, Event]] = []
        self._undone: set[CommitId] = set()
        self._finished = False

    def write(self, event: Event) -> None:
        """Add an event, and record that it belongs to the worker's latest commit."""
        with self._lock:
            self._events.append((self._points[-1], event))

    def publish(self) -> None:
        """Do nothing, because the controller fetches the events."""

    def committed(self, point: CommitId) -> None:
        """Record that this worker has made a commit with the ID `point`."""
        with self._lock:
            self._points.append(point)

    def finish(self) -> None:
        """Confirm the last commit at the end of training, because no later commit will do so."""
        with self._lock:
            self._finished = True

    @property
    def point(self) -> CommitId:
        """The latest commit in this worker's history."""
        return self._points[-1]

    @property
    def confirmed(self) -> CommitId:
        """The last commit up to which the history is final; at first, the start of the run."""
        with self._lock:
            return self._points[max(0, self._num_confirmed() - 1)]

    def is_undone(self, point: CommitId) -> bool:
        """Return whether a commit of this worker was undone: it is no longer in the history.

        This happens when the worker takes over a peer's history.
        """
        return point in self._undone

    def _num_confirmed(self) -> int:
        return len(self._points) - (0 if self._finished else 1)

    def since(self, known: CommitId | None) -> tuple[bool, CommitId, list[tuple[CommitId, Event]]]:
        """Return the confirmed events after a commit, for the controller.

        Events up to the commit are dropped, because the controller has them.

        Args:
            known: The last commit whose events the controller has; None if it has none.

        Returns:
            Whether this history contains `known` (otherwise the controller must not use it); the
            last confirmed commit; and the events after `known`, up to that commit.
        """
        with self._lock:
            num_confirmed = self._num_confirmed()
            confirmed = self._points[max(0, num_confirmed - 1)]
            if known is not None:
                if known not in self._points:
                    return False, confirmed, []
                self._points = self._points[self._points.index(known) :]
                self._events = [(point, event) for point, event in self._events if point > known]
            events = [(p, e) for p, e in self._events if p <= confirmed]
            return True, confirmed, events if num_confirmed else []

    def to_json(self) -> dict[str, Any]:
        """Return this worker's commits and events as JSON values, for a joining worker."""
        with self._lock:
            return {
                "points": [[p.num_commits, p.lineage] for p in self._points],
                "events": [[p.num_commits, p.lineage, to_json(e)] for p, e in self._events],
            }

    def take_over(self, values: Mapping[str, Any]) -> None:
        """Replace this worker's history by a peer's, which the peer's `to_json` returned."""
        with self._lock:
            points = [CommitId(*pair) for pair in values["points"]]
            # All commits but the last are confirmed, so the peer has passed them, too, even if it
            # has dropped them.
            self._undone |= {self._points[-1]} - set(points)
            self._points = points
            self._events = [
                (CommitId(num_commits, lineage), from_json(text))
                for num_commits, lineage, text in values["events"]
            ]


@dataclass
class SnapshotBuffer:
    """Buffer of a worker's checkpoints until the controller fetches them; a `CheckpointSink`.

    A new checkpoint replaces the older ones, with two exceptions. The best one, by the job's
    `best_metric`, is kept until it is fetched or a better one is saved. The last confirmed one is
    kept until a newer one is confirmed: only confirmed checkpoints can be fetched, and if one is
    saved at every commit, the newest is never confirmed.
    """

    history: EventBuffer
    requested: bool = False
    _waiting: list[StateSnapshot] = field(default_factory=list)
    _taken: list[SavedCheckpoint] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def save_in_background(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Keep a checkpoint until the controller fetches it."""
        confirmed = self.history.confirmed
        with self._lock:
            self.requested = False
            certain = self._certain(confirmed)[-1:]
            self._waiting = [s for s in self._waiting if s in certain or (s.best and not best)]
            self._waiting.append(StateSnapshot(self.history.point, checkpoint, best))
            self._taken.append(SavedCheckpoint(checkpoint.step, 0, 0.0, 0.0))

    def wait(self) -> None:
        """Do nothing, because the controller writes the checkpoints."""

    def take_saved(self) -> list[SavedCheckpoint]:
        """Return an entry for each checkpoint kept since the last call, for the loop to log.

        The loop writes an event for each. These events mark where a step event has to end, so that
        none contains steps from both before and after a checkpoint. Sizes and times are 0 here; the
        controller logs the real ones when it writes the files.
        """
        with self._lock:
            taken, self._taken = self._taken, []
        return taken

    def next_to_fetch(self, confirmed: CommitId) -> StateSnapshot | None:
        """Return the next checkpoint for the controller to fetch; None if none is confirmed.

        Among the confirmed ones, it is the oldest that was saved as the best model so far; if there
        is none of these, the newest. It stays in the buffer. A checkpoint is confirmed if this
        worker's history contains its commit, and that commit is not after `confirmed`.

        Args:
            confirmed: The last commit that is known to be final.
        """
        with self._lock:
            certain = self._certain(confirmed)
            return next((s for s in certain if s.best or s is certain[-1]), None)

    def take(self, confirmed: CommitId) -> StateSnapshot | None:
        """Return the next checkpoint to fetch; remove it and all older ones from the buffer.

        `next_to_fetch` chooses it: the oldest confirmed one that is kept as the best model so far,
        or else the newest confirmed one. So best checkpoints are not skipped, and of the others
        only the latest state is fetched.

        Args:
            confirmed: The last commit that is known to be final.

        Returns:
            The checkpoint; None if none is confirmed.
        """
        found = self.next_to_fetch(confirmed)
        if found is not None:
            with self._lock:
                self._waiting = [s for s in self._waiting if s.point > found.point]
        return found

    def _certain(self, confirmed: CommitId) -> list[StateSnapshot]:
        return [
            s for s in self._waiting if s.point <= confirmed and not self.history.is_undone(s.point)
        ]


@dataclass(frozen=True, eq=False)
class StateSnapshot:
    """A checkpoint in memory, with the ID of the last commit that it contains.

    Attributes:
        point: The last commit in the checkpoint.
        checkpoint: The checkpoint, a copy of the worker's state.
        best: Whether its model was the best so far, by the job's `best_metric`.
        published: Path -> tensor. Tensors that the published model has instead of the checkpoint's,
            such as averaged weights; empty before the end of training.
        stopped: Sentence for the user if a callback ended training early.
        restored: What a callback restored at the end of training, as a sentence for the user.
    """

    point: CommitId
    checkpoint: Checkpoint
    best: bool
    published: State = field(default_factory=dict)
    stopped: str = ""
    restored: str = ""
