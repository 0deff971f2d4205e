"""Retries while a resource is in use by another process that will soon release it.

When a statement is killed, its submitter (the process that runs it) continues until it has saved
its progress. If the same statement is run again immediately, the resource is still in use.

Used by `models.py` and `databases/duckdb.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Got = TypeVar("Got")

_POLL_S = 0.1


def retry_while_busy(act: Callable[[], Got], busy: type[Exception], timeout_s: float) -> Got:
    """Repeat a call until it no longer reports that a resource is in use; return its result.

    Args:
        act: Function () to call.
        busy: Type of the exception that `act` raises while another process holds the resource.
        timeout_s: How long to retry, in seconds.

    Raises:
        Exception: Another error of the call; or one of type `busy` if the resource is still in use
            after `timeout_s`.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except busy:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_POLL_S)
