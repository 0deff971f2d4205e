"""User calls: tracks running calls of a user's input function to report those that hang.

A function that never returns cannot be ended from Python, but another thread can check these calls
and report the line that is being executed.

Callers: `input_calls.py` records calls; `elastic/worker.py` checks them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elasticdl import tracebacks
from elasticdl.errors import UserCodeError

# Calls are checked every second or two. If two checks are further apart, this process may have been
# stopped, or the machine may have been asleep, so at most this much time counts.
_MAX_BETWEEN_LOOKS_S = 5.0


@dataclass(eq=False)
class _Call:
    where: str
    records: Callable[[], str]
    since_s: float
    seen_running_s: float = 0.0


class _Calls:
    """The running calls of user functions in this process: thread ID -> call."""

    def __init__(self) -> None:
        self.running: dict[int, _Call] = {}
        self.slowest_s = 0.0
        self.looked_s = 0.0


_calls = _Calls()


@contextlib.contextmanager
def calling(where: object, records: Callable[[], str]) -> Iterator[None]:
    """Context manager around a call of a user function, so that `overdue` can report that it hangs.

    Args:
        where: Location of the function, `file:line`.
        records: Function () -> names of the records passed to it.
    """
    thread, since_s = threading.get_ident(), time.monotonic()
    _calls.running[thread] = _Call(str(where), records, since_s)
    try:
        yield
    finally:
        _calls.running.pop(thread, None)
        _calls.slowest_s = max(_calls.slowest_s, time.monotonic() - since_s)


def overdue(limit: Callable[[float], float], option: str) -> UserCodeError | None:
    """Return an error if a call of a user function takes too long.

    Call this every second or two. Longer pauses, as of a stopped process, do not count as time that
    the function has been running.

    Args:
        limit: Function (duration of the slowest call so far) -> how long a call may take, both in
            seconds.
        option: The option with which the user sets the limit.

    Returns:
        The error, or None if no call takes too long.
    """
    allowed_s = limit(_calls.slowest_s)
    now_s = time.monotonic()
    looked_s, _calls.looked_s = _calls.looked_s, now_s
    for thread, call in list(_calls.running.items()):
        since_look_s = now_s - max(looked_s, call.since_s)
        call.seen_running_s += min(since_look_s, _MAX_BETWEEN_LOOKS_S)
        if call.seen_running_s <= allowed_s:
            continue
        name, at = tracebacks.running_at(thread) or ("the input function", call.where)
        return UserCodeError(
            f"{at}: {name}() has been running for {call.seen_running_s:.0f} s on {call.records()}; "
            f"expected a batch within {allowed_s:g} s. Check what it is waiting for there. If it "
            f"needs that long, increase {option}."
        )
    return None
