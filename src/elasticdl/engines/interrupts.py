"""Interrupts: defers Ctrl-C and SIGTERM to the next safe point of a run.

A step changes the weights first, and then the ledger, which records the batches that the model was
trained on. A checkpoint written in between would make a resumed run train on batches twice. So a
signal is only recorded, and handled at the next safe point, where weights and ledger contain the
same batches. A second signal is handled at once, without saving any progress.

`handled_immediately` is for work whose partial results are not kept (a simulated party's training
between two rounds), so that there is no need to wait.
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
    """Context manager that defers Ctrl-C and SIGTERM until `check` is called or the block ends.

    A second signal before that is handled at once.

    Attributes:
        handled_at_safe_point: Whether `check` has handled a signal. The code that ends the run may
            then write a last checkpoint, because weights and ledger contain the same batches.
    """

    def __init__(self) -> None:
        self.handled_at_safe_point = False
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
        """Handle a Ctrl-C or SIGTERM that has arrived since the block began or since the last call.

        Call this at safe points. The signal is passed to the handler that was installed before the
        block, which usually raises an exception, such as `KeyboardInterrupt`. Without a handler,
        the signal ends the process, unless it is ignored. If none has arrived, nothing happens.
        """
        if self._noted is None:
            return
        number, self._noted = self._noted, None
        self.handled_at_safe_point = True
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
            # There was no Python handler: let the default action end the process.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextlib.contextmanager
def handled_immediately(check: Callable[[], None]) -> Iterator[None]:
    """Context manager that handles signals at once during its block, within an `Interrupts` block.

    Ctrl-C or SIGTERM may end the block at any line, so it must not leave partial results behind.

    Args:
        check: `Interrupts.check` of the enclosing `Interrupts`.
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
        # A signal may have arrived just before.
        check()
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
