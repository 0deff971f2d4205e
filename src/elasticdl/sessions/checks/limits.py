"""Limits for user code that a session check calls: it must not hang, leave files, or print."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_AGAIN_S = 1.0
PATIENCE_S = 20.0
"""Seconds after which a generator that has yielded nothing may be in an endless loop."""


class TooLongError(BaseException):
    """A step of a check takes too long; a BaseException, which users' code rarely catches."""


@contextlib.contextmanager
def within(seconds: float | None = None) -> Iterator[None]:
    """Context manager that interrupts its block after `seconds`; None means `PATIENCE_S`.

    A loop in Python is interrupted at once, a call into C only when it returns. Only the main
    thread can be interrupted: in other threads this has no effect.

    Raises:
        TooLongError: The block took longer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, _too_long)
    patience = PATIENCE_S if seconds is None else seconds
    # Repeatedly: Python only prints an exception raised within a finalizer, and continues.
    before, interval = signal.setitimer(signal.ITIMER_REAL, patience, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if before:
            # Restore an earlier alarm, such as one set by a test.
            left = max(before - (time.monotonic() - started), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def _too_long(signum: int, frame: FrameType | None) -> NoReturn:
    del signum, frame
    raise TooLongError


@contextlib.contextmanager
def without_side_effects() -> Iterator[None]:
    """Context manager in which Python writes no `__pycache__`, and git does not write its index."""
    bytecode, locks = sys.dont_write_bytecode, os.environ.get("GIT_OPTIONAL_LOCKS")
    sys.dont_write_bytecode = True
    os.environ["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        if locks is None:
            del os.environ["GIT_OPTIONAL_LOCKS"]
        else:
            os.environ["GIT_OPTIONAL_LOCKS"] = locks


@contextlib.contextmanager
def captured_warnings() -> Iterator[list[str]]:
    """Context manager that collects the warnings of ElasticDL's logger instead of printing them."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("elasticdl")
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
