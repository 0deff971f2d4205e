"""When Python looks for garbage in processes that are ours from start to end: seldom.

Callers: `cli/main.py`, `engines/elastic/fork_server.py`; `sql/databases/duckdb.py`.
"""

from __future__ import annotations

import atexit
import gc

_MANY_OBJECTS = 100_000


def collect_seldom() -> None:
    """Look for garbage only when many objects were made, and not when the process ends.

    A framework makes half a million objects while it is imported, and none of them is garbage:
    looking for some takes a quarter of that time, and at the end half a second once more.
    """
    gc.set_threshold(_MANY_OBJECTS)
    atexit.register(gc.freeze)


def collect_at_exit() -> None:
    """Look for garbage when the process ends after all: DuckDB reports what is left as leaks."""
    atexit.unregister(gc.freeze)
