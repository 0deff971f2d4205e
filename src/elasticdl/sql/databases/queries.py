r"""Queries that can be ended while a driver waits for them.

    main thread, which gets Ctrl-C and SIGTERM --waits--> a thread --driver, in C--> the database
             \------------------------- cancel ------------------------------------------^

A driver waits in C, where Python answers no signal until the query is over. So in the main thread
another thread waits for it, and whatever ends the wait ends the query as well: first on the
server, which would otherwise go on computing, then here.

Used by the files of the databases.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Found = TypeVar("Found")

# A database that is gone answers no cancel; its query is then left to a thread of its own.
PATIENCE_S = 10.0
# The same, when Ctrl-C is pressed once more.
IMPATIENCE_S = 1.0
_AGAIN_S = 0.2


class Queries:
    """What runs on a database, so that any thread can end it."""

    def __init__(self) -> None:
        self._abandoned: _Call[Any] | None = None
        self._running: set[Query] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def begun(self, cancel: Callable[[], None]) -> Iterator[Query]:
        """Yield a query that `cancel` ends.

        Args:
            cancel: Ends what the connection runs, from any thread; does nothing if it runs
                nothing. What it raises is ignored.
        """
        query = Query(cancel)
        with self._lock:
            self._running.add(query)
        try:
            yield query
        finally:
            with self._lock:
                self._running.discard(query)
            self._abandoned = query.abandoned or self._abandoned
            if query.abandoned is None:
                query.end()

    def cancel(self) -> None:
        """End all that runs now, each with an error in the thread that it runs in."""
        with self._lock:
            running = list(self._running)
        for query in running:
            query.cancel()

    def close(self, close: Callable[[], None]) -> None:
        """Close a cursor or a connection; if a call could not be ended, not before it has."""
        if self._abandoned is None or not self._abandoned.then(close):
            close()


class Query:
    """One or more calls of a driver, one after the other, on one connection.

    Attributes:
        is_cancelled: Somebody asked to end it. Loops between two calls look at this, as there is
            nothing to cancel between them.
        abandoned: A call that goes on, because it could not be ended.

    Args:
        cancel: See `Queries.begun`.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel, self._lock = cancel, threading.Lock()
        self._is_over = False
        self.is_cancelled = False
        self.abandoned: _Call[Any] | None = None

    def cancel(self) -> None:
        """End the call that is under way."""
        with self._lock:
            if not self._is_over:
                self.is_cancelled = True
                # Of a connection that is lost, or not yet there.
                with contextlib.suppress(Exception):
                    self._cancel()

    def end(self) -> None:
        """Let nothing be cancelled from now on: the connection is about to be closed."""
        # A cancel that is on its way must not meet what the connection does next.
        with self._lock:
            self._is_over = True

    def wait_for(self, act: Callable[[], Found]) -> Found:
        """Return what a call of the driver returns.

        Args:
            act: The call. In the main thread it runs in another one.

        Raises:
            BaseException: What `act` raised; or Ctrl-C and the like, when the call has ended.
            OSError: An earlier call still has the connection.
        """
        if self.abandoned is not None:
            raise ConnectionAbortedError("The database does not answer.")
        if threading.current_thread() is not threading.main_thread():
            return act()
        call = _Call(act)
        try:
            call.start()
            call.done.wait()
        except BaseException:
            self._end(call)
            raise
        return call.result()

    def _end(self, call: _Call[Found]) -> None:
        """Cancel a call until it has ended; give up after a while."""
        self.abandoned = call
        deadline_s = time.monotonic() + PATIENCE_S
        cancelling: _Call[None] | None = None
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                # It may itself wait for a server that is gone; and a call that had not reached
                # the server yet is cancelled by the next one.
                if cancelling is None or cancelling.done.is_set():
                    cancelling = _Call(self.cancel)
                    cancelling.start()
                if call.done.wait(min(left_s, _AGAIN_S)):
                    self.abandoned = None
                    return
            except BaseException:  # noqa: BLE001 - Ctrl-C once more: it is being answered
                deadline_s = min(deadline_s, time.monotonic() + IMPATIENCE_S)


class _Call(Generic[Found]):
    """A call in a thread of its own, which keeps no process alive."""

    def __init__(self, act: Callable[[], Found]) -> None:
        self.done = threading.Event()
        self._found: list[Found] = []
        self._error: BaseException | None = None
        self._act = act
        self._then: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin it."""
        threading.Thread(target=self._run, name="query", daemon=True).start()

    def _run(self) -> None:
        try:
            self._found.append(self._act())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        with self._lock:
            self.done.set()
        for act in self._then:
            with contextlib.suppress(Exception):
                act()

    def then(self, act: Callable[[], None]) -> bool:
        """Do something when the call has ended; return whether that is still to come."""
        with self._lock:
            if not self.done.is_set():
                self._then.append(act)
                return True
        return False

    def result(self) -> Found:
        """Return what the call returned, or raise what it raised; once."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                # Its traceback holds this frame.
                self._error = None
        return self._found.pop()
