"""Which calls of a user's input function this process is in, and for how long.

A function that never returns cannot be ended from Python, but it can be named: another thread
looks here, and says where the function is.

Callers: `record_data.py` enters; `elastic/worker.py` looks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elasticdl import tracebacks
from elasticdl.errors import UserCodeError

# Who looks does so every second or two. Between two looks that are further apart this process may
# have been stopped, or the machine asleep, so no more than this counts.
_MOST_BETWEEN_LOOKS_S = 5.0


@dataclass(eq=False)
class _Call:
    where: str
    records: Callable[[], str]
    since_s: float
    seen_running_s: float = 0.0


class _Calls:
    """Those of this process, by thread."""

    def __init__(self) -> None:
        self.running: dict[int, _Call] = {}
        self.slowest_s = 0.0
        self.looked_s = 0.0


_calls = _Calls()


@contextlib.contextmanager
def calling(where: object, records: Callable[[], str]) -> Iterator[None]:
    """Note that the block calls a function of the user's.

    Args:
        where: Where the function is, `file:line`.
        records: Names what it was given.
    """
    thread, since_s = threading.get_ident(), time.monotonic()
    _calls.running[thread] = _Call(str(where), records, since_s)
    try:
        yield
    finally:
        _calls.running.pop(thread, None)
        _calls.slowest_s = max(_calls.slowest_s, time.monotonic() - since_s)


def overdue(limit: Callable[[float], float], option: str) -> UserCodeError | None:
    """Return the error for a call that takes too long; to be called every second or two.

    Args:
        limit: How long a call may take, in seconds, where the slowest one so far has taken so many.
        option: How the user sets that.

    Returns:
        None if no call has taken so long.
    """
    allowed_s = limit(_calls.slowest_s)
    now_s = time.monotonic()
    looked_s, _calls.looked_s = _calls.looked_s, now_s
    for thread, call in list(_calls.running.items()):
        since_look_s = now_s - max(looked_s, call.since_s)
        call.seen_running_s += min(since_look_s, _MOST_BETWEEN_LOOKS_S)
        if call.seen_running_s <= allowed_s:
            continue
        name, at = tracebacks.running_at(thread) or ("the input function", call.where)
        return UserCodeError(
            f"{at}: {name}() has been running for {call.seen_running_s:.0f} s on "
            f"{call.records()}; expected a batch within {allowed_s:g} s. Look at what it waits for "
            f"there. If it needs that long, set {option} to more."
        )
    return None
