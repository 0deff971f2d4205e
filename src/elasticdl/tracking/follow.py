"""Event log that forwards its events to trackers, without making training wait for them.

    write(event) -> the log, as without trackers
                 -> a queue -> a thread -> each tracker

An event that a tracker cannot accept now stays in the queue and is sent again later. One that it
rejects permanently is dropped. Only the first such failure is reported to the user, and none stops
training: the event log contains everything, and the next start of the job sends it again. Errors of
trackers are raised only by `track`, before training begins.

Callers: `engines/attempt.py`, and sessions, which add tags and artifacts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from elasticdl.errors import OutputLostError, TrackingError
from elasticdl.tracking.points import Points, status_of
from elasticdl.tracking.tracker import MetricPoint, RunStatus, TrackedAttempt, Tracker

if TYPE_CHECKING:
    from types import TracebackType

    from elasticdl.events import Event

_RETRY_S = 20.0
# Upper bound for how long an unresponsive server delays the end of a finished command.
_DRAIN_S = 30.0

_Update: TypeAlias = Callable[[Tracker], None]


class Log(Protocol):
    """Interface to the event log that `FollowedLog` writes to; see `event_file.EventLog`."""

    @property
    def path(self) -> Path:
        """Return the file of the log."""
        ...

    def write(self, event: Event) -> None:
        """Write an event."""
        ...

    def publish(self) -> None:
        """Make the events written so far survive a crash: flush or upload the log."""
        ...


class FollowedLog:
    """An event log that forwards its events to trackers; without trackers, it is a plain log.

    Args:
        log: Receives each event first, in the caller's thread.
        note: Function (message) that shows it to the user; may be called from another thread.
        drain_s: Longest time in seconds that `close` waits for pending events.
        retry_s: Pause in seconds before an event is sent again to a tracker that failed.

    Attributes:
        note: Function (message) that shows it to the user.
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
        self._queue: queue.SimpleQueue[_Update | None] = queue.SimpleQueue()
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
        # If another process has taken over the job, the job has not ended.
        if error is not None and not isinstance(error, OutputLostError):
            # If the end could not be written to the log, the trackers have not received it either.
            is_killed = not isinstance(error, Exception)
            self.end(
                RunStatus.KILLED if is_killed else RunStatus.FAILED, "" if is_killed else str(error)
            )
        self.close()

    def track(
        self, trackers: Sequence[Tracker], attempt: TrackedAttempt, history: Iterable[Event] = ()
    ) -> None:
        """Start trackers, and send them all past and future events.

        Args:
            trackers: The trackers. A second call, when an ended job resumes in the same process,
                replaces the earlier trackers.
            attempt: Description of this attempt at the job.
            history: The earlier events in the log that still hold, without those of steps that the
                job will repeat.

        Raises:
            TrackingError: A tracker cannot be reached, or rejects the run.
        """
        self.close()
        self._ended = self._noted = False
        for tracker in trackers:
            tracker.start(attempt)
        # A daemon: an unresponsive server must not keep the process alive.
        self._thread = threading.Thread(
            target=self._work, args=(trackers,), name="tracking", daemon=True
        )
        points = Points()
        for event in history:
            self._send_point(points.take(event))
        self._thread.start()

    def write(self, event: Event) -> None:
        """Write an event to the log and queue it for the trackers.

        Raises:
            OutputError: The log cannot be written; the trackers then do not receive the event.
        """
        self._log.write(event)
        self._send_point(self._points.take(event))
        ended = status_of(event)
        if ended is not None:
            self.end(*ended)

    def publish(self) -> None:
        """Publish the log, without waiting for the trackers.

        Raises:
            OutputError: The log cannot be written.
        """
        self._log.publish()

    def tags(self, values: Mapping[str, str]) -> None:
        """Send tags of the run, by name, to the trackers in the background."""
        self._send(lambda tracker: tracker.tags(values))

    def artifact(self, path: Path, folder: str = "") -> None:
        """Send a file or folder to the trackers in the background.

        The file or folder must not change until `close` has returned.
        """
        self._send(lambda tracker: tracker.artifact(path, folder))

    def end(self, status: RunStatus, error: str = "") -> None:
        """Send the attempt's final status to the trackers; later calls have no effect."""
        if not self._ended:
            self._ended = True
            self._send(lambda tracker: tracker.end(status, error))

    def close(self) -> None:
        """Wait until everything is sent, for at most `drain_s`; may be called repeatedly."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._queue.put(None)
        thread.join(self._drain_s)
        if thread.is_alive():
            self._note_once(f"Tracking did not finish within {self._drain_s:g} seconds.")

    def _send_point(self, point: MetricPoint | None) -> None:
        if point is not None:
            self._send(lambda tracker: tracker.point(point))

    def _send(self, update: _Update) -> None:
        if self._thread is not None:
            self._queue.put(update)

    # --- on the thread --------------------------------------------------------------------

    def _work(self, trackers: Sequence[Tracker]) -> None:
        waiting: list[deque[_Update]] = [deque() for _ in trackers]
        rested_s = [0.0 for _ in trackers]
        is_open = True
        while is_open:
            update = self._queue.get()
            is_open = update is not None
            for number, tracker in enumerate(trackers):
                if update is not None:
                    waiting[number].append(update)
                # At the end, one last try for every tracker, even one that is paused.
                if not is_open or time.monotonic() >= rested_s[number]:
                    self._try(tracker, waiting[number])
                    if waiting[number]:
                        rested_s[number] = time.monotonic() + self._retry_s

    def _try(self, tracker: Tracker, waiting: deque[_Update]) -> None:
        """Send the queued updates to a tracker, in order.

        Stop at one that the tracker cannot accept now: it stays in the queue. One that it rejects
        is dropped.
        """
        while waiting:
            try:
                waiting[0](tracker)
            except TrackingError as error:
                self._note_once(str(error))
                return
            except Exception as error:  # noqa: BLE001 - a tracker must never stop training
                self._note_once(f"{tracker.where} is incomplete: {error}")
            waiting.popleft()

    def _note_once(self, what: str) -> None:
        if self._noted:
            return
        self._noted = True
        self.note(
            f"{what} Training continues. Missing entries are sent as soon as possible, or when the "
            "same command is run again."
        )
