"""Prefetch: prepares the next batches in a thread while a caller computes on the current one."""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_MAX_BYTES_AHEAD = 64 * 2**20
INTERRUPTED_S = 2.0
"""Seconds to wait, after an interrupt, for a user function that is preparing a batch."""

T = TypeVar("T")


class Prefetch(Generic[T]):
    """An iterator that runs in a thread, ahead of its consumer.

    An error that the iterator raises is raised by `peek` once all items before it have been taken.
    `close()` (or the end of a `with` block) ends the thread.

    Args:
        items: The iterator, which starts at once in the thread.
        size_bytes: Function (item) -> its size. The queue holds up to about 64 MiB, but at least 2
            items.
    """

    def __init__(self, items: Iterator[T], size_bytes: Callable[[T], int]) -> None:
        self._items = items
        self._size_bytes = size_bytes
        self._queue: collections.deque[tuple[T, int]] = collections.deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="elasticdl-feed", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(INTERRUPTED_S if interrupted else None)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop the thread and drop the prefetched items.

        Args:
            timeout_s: Seconds to wait for the thread, which first finishes the item that it is
                preparing. None: wait without limit.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def peek(self) -> T | None:
        """Wait for the next item and return it without removing it; None if there are no more.

        An error that the iterator raised is raised here, after all items before it were taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended)
            if self._queue:
                return self._queue[0][0]
            if self._error is not None:
                raise self._error
            return None

    def take(self) -> T:
        """Remove and return the next item, which `peek` must have returned before."""
        with self._changed:
            item, size = self._queue.popleft()
            self._queued_bytes -= size
            self._changed.notify_all()
            return item

    def _run(self) -> None:
        try:
            for item in self._items:
                size = self._size_bytes(item)
                with self._changed:
                    self._changed.wait_for(
                        lambda: (
                            self._closed
                            or len(self._queue) < 2  # noqa: PLR2004 - one in use, one ready
                            or self._queued_bytes < _MAX_BYTES_AHEAD
                        )
                    )
                    if self._closed:
                        return
                    self._queue.append((item, size))
                    self._queued_bytes += size
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again by `peek`
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
