r"""Cancellable queries: lets a thread cancel a query while a driver is waiting for it.

    main thread, which gets Ctrl-C and SIGTERM --waits--> a thread --driver, in C--> the database
             \------------------------- cancel ------------------------------------------^

A driver waits in C, where Python handles no signal until the query is over. So another thread waits
for the driver, and the main thread for that thread; a signal can interrupt this wait. Then the
query is cancelled: first on the server, which would otherwise go on computing, then in the driver.

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

# A vanished database never confirms a cancel; its query is then left to its own thread.
PATIENCE_S = 10.0
# The same limit after a second Ctrl-C.
IMPATIENCE_S = 1.0
_AGAIN_S = 0.2


class Queries:
    """Registry of the running queries of a database, which any thread can cancel."""

    def __init__(self) -> None:
        self._abandoned: _Call[Any] | None = None
        self._running: set[DatabaseQuery] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def registered(self, cancel: Callable[[], None]) -> Iterator[DatabaseQuery]:
        """Context manager for running a query, so that `Queries.cancel` can cancel it meanwhile.

        Args:
            cancel: Function () that ends the connection's current call, if there is one; may be
                called from any thread. Its exceptions are ignored.
        """
        query = DatabaseQuery(cancel)
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
        """Cancel all running queries; each raises an error in its own thread."""
        with self._lock:
            running = list(self._running)
        for query in running:
            query.cancel()

    def close(self, close: Callable[[], None]) -> None:
        """Close a cursor or a connection as soon as that is safe.

        If a call on the connection could not be cancelled, close it when that call has ended;
        otherwise close it now.

        Args:
            close: Function that closes the cursor or connection.
        """
        if self._abandoned is None or not self._abandoned.then(close):
            close()


class DatabaseQuery:
    """A query that can be cancelled: one or more consecutive driver calls on one connection.

    Attributes:
        is_cancelled: Whether a cancel was requested. Loops check this between two calls, when no
            call is running that could be cancelled.
        abandoned: A call that may still be running because it could not be cancelled; usually None.

    Args:
        cancel: Function () that ends the connection's current call, if there is one; may be called
            from any thread. Its exceptions are ignored.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel, self._lock = cancel, threading.Lock()
        self._is_over = False
        self.is_cancelled = False
        self.abandoned: _Call[Any] | None = None

    def cancel(self) -> None:
        """Cancel the driver call that is running, if there is one, from another thread."""
        with self._lock:
            if not self._is_over:
                self.is_cancelled = True
                # The connection may be lost, or not open yet.
                with contextlib.suppress(Exception):
                    self._cancel()

    def end(self) -> None:
        """Make later calls of `cancel` do nothing, because the connection is about to be closed."""
        # The lock: a cancel in progress must not hit the next use of the connection.
        with self._lock:
            self._is_over = True

    def wait_for(self, act: Callable[[], Found]) -> Found:
        """Make a driver call that can be cancelled; return its result.

        Args:
            act: Function () that makes the call. If this is the main thread, `act` runs in another
                one, so that signals are handled while it runs.

        Raises:
            BaseException: The error of `act`; or the exception of a signal such as Ctrl-C, raised
                after the call has ended or turned out not to be cancellable.
            OSError: An earlier call still occupies the connection.
        """
        if self.abandoned is not None:
            raise ConnectionAbortedError("The database does not respond.")
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
        """Cancel a call repeatedly until it ends.

        After `PATIENCE_S` seconds (`IMPATIENCE_S` after another Ctrl-C), leave it running in its
        thread and store it as `abandoned`.
        """
        self.abandoned = call
        deadline_s = time.monotonic() + PATIENCE_S
        cancelling: _Call[None] | None = None
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                # The cancel may itself wait for a vanished server. It is repeated, because a call
                # that had not reached the server yet is only stopped by the next cancel.
                if cancelling is None or cancelling.done.is_set():
                    cancelling = _Call(self.cancel)
                    cancelling.start()
                if call.done.wait(min(left_s, _AGAIN_S)):
                    self.abandoned = None
                    return
            except BaseException:  # noqa: BLE001 - another Ctrl-C, which shortens the wait
                deadline_s = min(deadline_s, time.monotonic() + IMPATIENCE_S)


class _Call(Generic[Found]):
    """A driver call running in its own daemon thread, which does not keep the process alive."""

    def __init__(self, act: Callable[[], Found]) -> None:
        self.done = threading.Event()
        self._found: list[Found] = []
        self._error: BaseException | None = None
        self._act = act
        self._then: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the driver call in a background thread; return at once."""
        threading.Thread(target=self._run, name="query", daemon=True).start()

    def _run(self) -> None:
        try:
            self._found.append(self._act())
        except BaseException as error:  # noqa: BLE001 - re-raised in the waiting thread
            self._error = error
        with self._lock:
            self.done.set()
        for act in self._then:
            with contextlib.suppress(Exception):
                act()

    def then(self, act: Callable[[], None]) -> bool:
        """Schedule a function to run when the call ends; return True.

        If the call has ended already, return False without running the function.
        """
        with self._lock:
            if not self.done.is_set():
                self._then.append(act)
                return True
        return False

    def result(self) -> Found:
        """Return the result of the call, or raise its error; can be called once."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                # Its traceback refers to this frame, which would be a reference cycle.
                self._error = None
        return self._found.pop()
