"""Ctrl-C and SIGTERM, answered where a run can be ended without a step half entered.

Between a committed step and its entry in the ledger, weights and ledger disagree: an interrupt
there would make a checkpoint that trains records twice. So a signal is only noted, and answered
at the next safe point. A second one is answered at once, and nothing is kept.

Where nothing that is half done is kept (a simulated party's training between two rounds), there is
nothing to wait for either: `answered_at_once`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes signals while its block runs; only in the main thread, where Python handles them.

    Attributes:
        answered_safely: A signal was answered by `check`, so weights and ledger agree.
    """

    def __init__(self) -> None:
        self.answered_safely = False
        self._noted: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if error is None:
            self.check()

    def check(self) -> None:
        """Answer a signal that was noted: with what it would have done without us."""
        if self._noted is None:
            return
        number, self._noted = self._noted, None
        self.answered_safely = True
        self._answer(number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is not None:
            self._answer(number, frame)
        self._noted = number

    def _answer(self, number: int, frame: FrameType | None) -> None:
        handler = self._handlers[number]
        if callable(handler):
            handler(number, frame)
        elif handler != signal.SIG_IGN:
            # Nobody asked to be told: end as a process does that was not told either.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextlib.contextmanager
def answered_at_once(check: Callable[[], None]) -> Iterator[None]:
    """Answer a signal when it comes; for a block that leaves nothing half done behind.

    Args:
        check: `Interrupts.check` of the block around this one; raises what a signal is to raise.
    """
    handlers: dict[int, Any] = {}

    def answer(number: int, frame: FrameType | None) -> None:
        handlers[number](number, frame)
        check()

    if threading.current_thread() is threading.main_thread():
        for each in _SIGNALS:
            handler = signal.getsignal(each)
            if callable(handler):
                handlers[each] = handler
                signal.signal(each, answer)
    try:
        # One that came just before.
        check()
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
