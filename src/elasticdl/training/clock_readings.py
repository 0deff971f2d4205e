"""Moves clock readings in callbacks' attributes when a job resumes.

    self.start = time.perf_counter()            self.deadline = time.time() + 3600

A checkpoint stores such a value together with the time at which it is stored. On a resume, the
value is moved by the time in between: the time in which the job did not run does not count, as if
the job had not been killed. It also makes no difference that `perf_counter` has another zero on
another machine, or after a reboot.

Nothing marks a number as a clock reading, so it is recognized by its value:

- It lies between the start of this process and now, on one of the clocks of `time`. A reading of
  `perf_counter` or `monotonic` also has more than six decimals and at most nine, which no metric
  has: those are rounded, or computed in float32, or have all the digits of a float.
- A deadline lies in the future. When it is restored, the new process's callback must have a value
  that is about as long after the beginning of its training.

Callers: `callback_state.py`; the frameworks' `hooks.py`, when training begins.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np

TAG = "$clock"
_CLOCKS = ("time", "perf_counter", "monotonic")
_NS_PER_S = 10**9
# Callbacks may be created before this module is imported.
_EARLIER_S = 600.0
# Soon after a boot, `perf_counter` is as small as other numbers are.
_LARGE_S = 10_000.0
_MAX_AHEAD_S = 30 * 86_400.0
# How much longer the callbacks before a callback may take to begin in one process than in another.
_BEGINNINGS_DIFFER_S = 60.0


def _readings() -> dict[str, float]:
    return {name: getattr(time, name)() for name in _CLOCKS}


# When this process began, and when its last training began.
_started = _readings()
_begun = dict(_started)


def begin_training() -> None:
    """Note the time at which training begins, before the callbacks' `on_train_begin`."""
    _begun.update(_readings())


def pack(value: Any) -> dict[str, Any] | None:
    """Return a clock reading as JSON, for `unpack`; None if the value is not a clock reading.

    Args:
        value: Any value; floats (seconds), ints (nanoseconds) and datetimes can be readings.
    """
    seconds = _seconds_of(value)
    if seconds is None:
        return None
    for name, now in _readings().items():
        started = _started[name]
        earliest = started - _EARLIER_S if started > _LARGE_S else started
        if not earliest <= seconds <= now + _MAX_AHEAD_S:
            continue
        if name != "time" and type(value) is float and not _has_nanoseconds(value):
            continue
        plain = value.isoformat() if isinstance(value, datetime) else value
        return {TAG: name, "value": plain, "at": now, "begun": _begun[name]}
    return None


def unpack(kept: Mapping[str, Any], current: Any) -> Any:
    """Return the value of a packed reading, moved by the time since it was packed.

    Args:
        kept: A result of `pack`.
        current: The attribute's present value, which a new process has set.
    """
    name, plain = kept[TAG], kept["value"]
    value = datetime.fromisoformat(plain) if isinstance(plain, str) else plain
    seconds = _seconds_of(value)
    assert seconds is not None  # noqa: S101 - `pack` has checked it
    if seconds > kept["at"]:
        again = _seconds_of(current)
        if again is None or type(current) is not type(value) or again == seconds:
            return value
        if abs((again - _begun[name]) - (seconds - kept["begun"])) > _BEGINNINGS_DIFFER_S:
            return value
    moved_s = _readings()[name] - kept["at"]
    if isinstance(value, datetime):
        return value + timedelta(seconds=moved_s)
    if type(value) is int:
        return value + round(moved_s * _NS_PER_S)
    return value + moved_s


def _seconds_of(value: Any) -> float | None:
    if type(value) is datetime:
        try:
            return value.timestamp()
        except (OverflowError, ValueError, OSError):
            return None
    if type(value) is int:
        # Not seconds: a generator's state has hundreds of integers of that size.
        return value / _NS_PER_S if value > _NS_PER_S * _LARGE_S else None
    # NaN compares as not in any range.
    return value if type(value) is float else None


def _has_nanoseconds(value: float) -> bool:
    is_of_clock = round(value, 9) == value != round(value, 6)
    return is_of_clock and float(np.float32(value)) != value
