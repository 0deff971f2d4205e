"""Waiting for what another process is about to let go of.

A statement that was killed leaves its submitter behind, which saves its progress and ends; the same
statement, given again at once, meets it.

Used by `models.py` and `databases/duckdb.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Got = TypeVar("Got")

_POLL_S = 0.1


def once_free(act: Callable[[], Got], busy: type[Exception], timeout_s: float) -> Got:
    """Return what a call returns, as soon as it does not raise that something is in use.

    Args:
        act: The call.
        busy: What it raises while another process has what it wants.
        timeout_s: How long to try.

    Raises:
        Exception: What the call raised; `busy` if it still does after that time.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except busy:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_POLL_S)
