"""Tuning of Python's garbage collector, in processes that are ours from start to end.

Callers: `cli/main.py`, `engines/elastic/fork_server.py`; `sql/databases/duckdb.py`.
"""

from __future__ import annotations

import atexit
import gc

_MANY_OBJECTS = 100_000


def collect_seldom() -> None:
    """Collect garbage only after many allocations, and not when the process ends.

    A framework creates half a million objects while it is imported, and none of them is garbage:
    collecting takes a quarter of that time, and another half second at exit.
    """
    gc.set_threshold(_MANY_OBJECTS)
    atexit.register(gc.freeze)


def collect_at_exit() -> None:
    """Collect garbage at exit after all: DuckDB reports objects that are left as leaks."""
    atexit.unregister(gc.freeze)
