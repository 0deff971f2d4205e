"""A log of events that trackers follow, without the training ever waiting for them.

    write(event) -> the log, as without trackers
                 -> a queue -> a thread -> each tracker

What a tracker cannot take now waits, and is tried again; what it never takes is left out. Either
is said once, in one note, and nothing of it stops a training: the log of events has it all, and
the next start of the job tells it again. Only `track`, before the training begins, fails loudly.

Callers: `engines/run.py`; sessions, which add tags and artifacts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from elasticdl.errors import TrackingError
from elasticdl.tracking.points import Points, status_of
from elasticdl.tracking.tracker import Attempt, Point, Status, Tracker

if TYPE_CHECKING:
    from types import TracebackType

    from elasticdl.events import Event

_RETRY_S = 20.0
# A server that does not answer keeps a finished command no longer than this.
_DRAIN_S = 30.0

_Telling: TypeAlias = Callable[[Tracker], None]


class Log(Protocol):
    """What is followed: `events.EventLog`."""

    @property
    def path(self) -> Path:
        """Return the file it is written to."""
        ...

    def write(self, event: Event) -> None:
        """Take an event."""
        ...

    def publish(self) -> None:
        """Make sure of those before."""
        ...


class FollowedLog:
    """A log of events, and who follows it; with no trackers it is the log and nothing else.

    Args:
        log: Each event goes there first, in the caller's thread.
        note: Tells a person one thing; may be called from another thread.
        drain_s: How long `close` waits for what is not told yet.
        retry_s: How long a tracker is left alone that did not answer.

    Attributes:
        note: See there.
        path: The file of the log.
    """

    def __init__(
        self,
        log: Log,
        note: Callable[[str], None],
        *,
        drain_s: float = _DRAIN_S,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._log = log
        self.note = note
        self.path = log.path
        self._drain_s, self._retry_s = drain_s, retry_s
        self._points = Points()
        self._queue: queue.SimpleQueue[_Telling | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._noted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            # Whoever could not write down how it ended could not tell it either.
            is_killed = not isinstance(error, Exception)
            self.end(Status.KILLED if is_killed else Status.FAILED, "" if is_killed else str(error))
        self.close()

    def track(
        self, trackers: Sequence[Tracker], attempt: Attempt, history: Iterable[Event] = ()
    ) -> None:
        """Start trackers, and tell them what happened so far and all that will.

        Args:
            trackers: Those to tell. Called again, when a job that had ended goes on in the same
                process, it ends the telling to those before.
            attempt: The start of the job that begins.
            history: What is in the log and was not taken back.

        Raises:
            TrackingError: One of them cannot be reached, or refuses.
        """
        self.close()
        self._ended = self._noted = False
        for tracker in trackers:
            tracker.start(attempt)
        # The process may end while a server does not answer: a daemon does not keep it.
        self._thread = threading.Thread(
            target=self._work, args=(trackers,), name="tracking", daemon=True
        )
        points = Points()
        for event in history:
            self._tell_point(points.take(event))
        self._thread.start()

    def write(self, event: Event) -> None:
        """Write an event to the log, and have it told.

        Raises:
            OutputError: As the log's; nobody is told then.
        """
        self._log.write(event)
        self._tell_point(self._points.take(event))
        ended = status_of(event)
        if ended is not None:
            self.end(*ended)

    def publish(self) -> None:
        """Make sure of the log; trackers are not waited for.

        Raises:
            OutputError: As the log's.
        """
        self._log.publish()

    def tags(self, values: Mapping[str, str]) -> None:
        """Have something said of the run, by name."""
        self._tell(lambda tracker: tracker.tags(values))

    def artifact(self, path: Path, folder: str = "") -> None:
        """Have a file or folder kept, which must stay as it is until `close`."""
        self._tell(lambda tracker: tracker.artifact(path, folder))

    def end(self, status: Status, error: str = "") -> None:
        """Have it told how the attempt ended; only the first word counts."""
        if not self._ended:
            self._ended = True
            self._tell(lambda tracker: tracker.end(status, error))

    def close(self) -> None:
        """Return when all is told, or has been waited for long enough; twice does no harm."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._queue.put(None)
        thread.join(self._drain_s)
        if thread.is_alive():
            self._say(f"Tracking did not take everything within {self._drain_s:g} seconds.")

    def _tell_point(self, point: Point | None) -> None:
        if point is not None:
            self._tell(lambda tracker: tracker.point(point))

    def _tell(self, telling: _Telling) -> None:
        if self._thread is not None:
            self._queue.put(telling)

    # --- on the thread --------------------------------------------------------------------

    def _work(self, trackers: Sequence[Tracker]) -> None:
        waiting: list[deque[_Telling]] = [deque() for _ in trackers]
        rested_s = [0.0 for _ in trackers]
        is_open = True
        while is_open:
            telling = self._queue.get()
            is_open = telling is not None
            for number, tracker in enumerate(trackers):
                if telling is not None:
                    waiting[number].append(telling)
                # At the end a last try, also for who was left alone.
                if not is_open or time.monotonic() >= rested_s[number]:
                    self._try(tracker, waiting[number])
                    if waiting[number]:
                        rested_s[number] = time.monotonic() + self._retry_s

    def _try(self, tracker: Tracker, waiting: deque[_Telling]) -> None:
        """Tell a tracker what waits, in order, up to the first thing it cannot take now."""
        while waiting:
            try:
                waiting[0](tracker)
            except TrackingError as error:
                self._say(str(error))
                return
            except Exception as error:  # noqa: BLE001 - a tracker must never stop a training
                self._say(f"{tracker.where} misses something: {error}")
            waiting.popleft()

    def _say(self, what: str) -> None:
        if self._noted:
            return
        self._noted = True
        self.note(
            f"{what} The training goes on. What can be told later is told as soon as it can be, "
            "or when the same command is given again."
        )
