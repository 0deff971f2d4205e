"""Work that gives way to whatever else computes on the machine.

Callers: `worker.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Beside threads that compute all the time it gets a tenth of what one of them does, and whatever
# they leave over.
_NICENESS = 10

_T = TypeVar("_T")


def nicely(function: Callable[[], _T]) -> _T:
    """Call a function in a thread of low priority; return what it returns.

    Without privileges no priority can be raised again, but on Linux each thread has its own. Those
    that the function starts keep the low one: whatever computes later is to be started before.
    """
    with ThreadPoolExecutor(1, "elasticdl-nicely", _give_way) as thread:
        return thread.submit(function).result()


def _give_way() -> None:
    # Of the calling thread, on Linux. Where it is forbidden the work is done all the same.
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
