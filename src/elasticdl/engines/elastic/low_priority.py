"""Low priority: runs a function at the lowest CPU priority, so that other processes go first.

Callers: `worker.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Beside threads that are always busy, such a thread gets a tenth of the CPU time of one of them,
# plus idle time.
_NICENESS = 10

_T = TypeVar("_T")


def low_priority(function: Callable[[], _T]) -> _T:
    """Call a function in a thread of low priority and return its result.

    The function runs in a thread of its own, because a thread that has lowered its priority needs
    privileges to raise it again. Threads that the function starts inherit the low priority and keep
    it. If threads, such as a framework's pool, are to compute at normal priority later, start them
    before calling `low_priority`.
    """
    with ThreadPoolExecutor(1, "elasticdl-nicely", _give_way) as thread:
        return thread.submit(function).result()


def _give_way() -> None:
    # On Linux this concerns the calling thread only. If it is forbidden, work at normal priority.
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
