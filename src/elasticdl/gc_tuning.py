"""Garbage collector settings, for processes that run only ElasticDL.

Callers: `cli/main.py`, `engines/elastic/fork_server.py`; `sql/databases/duckdb.py`.
"""

from __future__ import annotations

import atexit
import gc

_MANY_OBJECTS = 100_000


def collect_seldom() -> None:
    """Make garbage collection rare, and skip it when the process ends.

    Importing a framework creates half a million objects, none of them garbage. Collecting them
    takes a quarter of the import time, and another half second at exit.
    """
    gc.set_threshold(_MANY_OBJECTS)
    atexit.register(gc.freeze)


def collect_at_exit() -> None:
    """Undo the part of `collect_seldom` that skips garbage collection when the process ends.

    DuckDB reports objects that are still alive at exit as leaks.
    """
    atexit.unregister(gc.freeze)
