"""Moves the clock readings of callbacks when a job resumes.

    def on_train_begin(self, logs=None):
        self.start = time.perf_counter()
        self.deadline = time.time() + 3600

On a resume, such an attribute is moved by the time since the checkpoint was written, unless the
callback has changed it since. A time limit therefore does not count the time in which the job did
not run, and does not compare the clocks of two machines: `perf_counter` has another zero on each.

Nothing marks a number as a clock reading. But `on_train_begin` is called again when a job resumes,
and sets the attribute again. The attribute depends on a clock if its two values differ by exactly
as much as the clock's readings at the two calls.

Callers: `keras/callback_checkpoint.py`, `torch/callback_state.py`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

_CLOCKS = ("time", "perf_counter", "monotonic")
_NS_PER_S = 10**9
# Larger integers are nanoseconds, and above the second limit no readings at all.
_MIN_NS, _MAX_NS = 10**13, 10**19
# Integers may be seconds without their fraction.
_TOLERANCE_OF_INTS_S = 1.0
# In a shorter time, relative to the tolerance, other values may differ by as much as a clock.
_LEAST_BETWEEN = 10


class ClockReadings:
    """Finds callback attributes that `on_train_begin` reads from a clock; shifts them on a resume.

    Use it as `with readings.beginning(attributes): ...` around the calls of `on_train_begin`; store
    `state()` with the callbacks' attributes; and pass each restored attribute to `moved`.
    """

    def __init__(self) -> None:
        # The values that `on_train_begin` has set, in seconds, and those that `moved` has returned.
        self._first: dict[str, float] = {}
        self._present: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._after: dict[str, float] = {}

    @contextlib.contextmanager
    def beginning(self, attributes: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
        """Context manager around the calls of `on_train_begin`.

        Args:
            attributes: Function () -> the callbacks' attributes, by names that are the same in each
                process.
        """
        self._before = _readings()
        yield
        self._after = _readings()
        found = {name: _seconds_of(value) for name, value in attributes().items()}
        self._first = {name: seconds for name, seconds in found.items() if seconds is not None}
        self._present = dict(self._first)

    def state(self) -> dict[str, Any]:
        """Return what `moved` needs in another process, as JSON."""
        return {
            "first": dict(self._first),
            "present": dict(self._present),
            "before": self._before,
            "after": self._after,
            "now": _readings(),
        }

    def moved(self, kept: Mapping[str, Any], name: str, value: Any) -> Any:
        """Return an attribute's restored value, moved by the time since the checkpoint was written.

        A value that does not depend on a clock, or that was set later, is returned as it is.

        Args:
            kept: A result of `state`, from the checkpoint; may be empty.
            name: Name of the attribute.
            value: Its value in the checkpoint.
        """
        seconds = _seconds_of(value)
        if seconds is None or seconds != kept.get("present", {}).get(name):
            return value
        clock = self._clock_of(kept, name, type(value))
        if clock is None:
            return value
        by_s = _readings()[clock] - kept["now"][clock]
        moved: Any = value
        if isinstance(value, datetime):
            moved = value + timedelta(seconds=by_s)
        elif isinstance(value, int):
            moved = value + round(by_s * (_NS_PER_S if value > _MIN_NS else 1))
        else:
            moved = value + by_s
        now = _seconds_of(moved)
        assert now is not None  # noqa: S101 - it has the type of the value
        self._present[name] = now
        return moved

    def _clock_of(self, kept: Mapping[str, Any], name: str, kind: type) -> str | None:
        """Return the clock by which `on_train_begin` sets an attribute; None if it uses none."""
        own, other = self._first.get(name), kept["first"][name]
        if own is None:
            return None
        for clock in _CLOCKS:
            before, after = self._before[clock], self._after[clock]
            took_s = (after - before) + (kept["after"][clock] - kept["before"][clock])
            tolerance_s = took_s + (_TOLERANCE_OF_INTS_S if kind is int else 1e-3)
            between_s = before - kept["before"][clock]
            is_long = abs(between_s) > _LEAST_BETWEEN * tolerance_s
            if is_long and abs(own - other - between_s) <= tolerance_s:
                return clock
        return None


def _readings() -> dict[str, float]:
    return {clock: getattr(time, clock)() for clock in _CLOCKS}


def _seconds_of(value: Any) -> float | None:
    """Return a value that may be a clock reading, in seconds; None for all others."""
    if isinstance(value, datetime):
        with contextlib.suppress(OverflowError, ValueError, OSError):
            return value.timestamp()
        return None
    if type(value) is int:
        if abs(value) > _MAX_NS:
            return None
        return value / _NS_PER_S if value > _MIN_NS else float(value)
    return float(value) if isinstance(value, float) and math.isfinite(value) else None
