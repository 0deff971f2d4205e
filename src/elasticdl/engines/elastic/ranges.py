"""Which ranges of records are to do, in hand and done, and when it is no use to go on.

    to do --take--> in hand --finished--> done
      ^                |
      +----- lost -----+   (last in line: what ends every worker must not keep the others up)

A death uses nothing up: a range is given out again however often, unless it ends one worker after
the other at the same place. Times are told, not read, and Ray is not known here, so that every
situation can be written down in a unit test.

Callers: `tasks.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.data.wording import record_range

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANGES_PER_WORKER = 4
# What a part of a prediction holds in one process (`prediction/parts.py`).
MAX_RECORDS_PER_RANGE = 1 << 16

# For each worker, so many in a row that die before they have the model: it is the surroundings.
_MAX_FRUITLESS_STARTS = 5
# So many workers in a row that die at one place of the records: it is the records, or the model.
_MAX_LOSSES_AT_ONE_PLACE = 10


@dataclass(frozen=True)
class Range:
    """Records that one worker takes.

    Attributes:
        index: Which range, from 0.
        start: First record.
        stop: One past the last.
    """

    index: int
    start: int
    stop: int

    def __str__(self) -> str:
        """Return it in the words of a message."""
        return record_range(self.start, self.stop - 1)


def records_per_range(num_records: int, unit: int, num_workers: int) -> int:
    """Return how many records a range holds: about four ranges a worker, within limits.

    Args:
        num_records: How many there are.
        unit: A range holds a multiple of this, and at least this.
        num_workers: How many workers share them.

    Example:
        >>> records_per_range(100_000, 256, 4), records_per_range(300, 256, 4)
        (6144, 256)
    """
    wanted = min(num_records // (_RANGES_PER_WORKER * num_workers), MAX_RECORDS_PER_RANGE)
    return max(unit, wanted // unit * unit)


def cut(num_records: int, size: int) -> list[Range]:
    """Return the ranges of a size that hold all records, the last one fewer.

    Example:
        >>> [(range.start, range.stop) for range in cut(5, 2)]
        [(0, 2), (2, 4), (4, 5)]
    """
    starts = range(0, num_records, size)
    return [
        Range(index, start, min(start + size, num_records)) for index, start in enumerate(starts)
    ]


class Work:
    """All ranges of a job; see the module. Times are in seconds of one clock.

    Args:
        ranges: They, by index.
        num_workers: How many share them.
        give_up_after_s: The work is given up when nobody has got further for so long.
        now_s: When it begins.
    """

    def __init__(
        self, ranges: Sequence[Range], num_workers: int, give_up_after_s: float, now_s: float
    ) -> None:
        self._to_do = deque(ranges)
        self._in_hand: dict[int, int] = {}
        self._furthest: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        self._done_records = 0
        self._num_workers = num_workers
        self._give_up_after_s = give_up_after_s
        self._heard_s = now_s
        self._fruitless = 0
        self._last_loss = ""
        self._reason = ""

    @property
    def is_done(self) -> bool:
        """Whether all ranges are."""
        return not self._to_do and not self._in_hand

    @property
    def records_done(self) -> int:
        """How many records are done, those of ranges in hand included."""
        return self._done_records + sum(self._in_hand.values())

    def take(self) -> Range | None:
        """Give out the next range; None if there is none, or if all workers have one."""
        if not self._to_do or len(self._in_hand) >= self._num_workers:
            return None
        range_ = self._to_do.popleft()
        self._in_hand[range_.index] = 0
        return range_

    def begun(self, now_s: float) -> None:
        """Hear that a worker has the model and begins."""
        self._heard_s = now_s
        self._fruitless = 0

    def advanced(self, range_: Range, num_records: int, now_s: float) -> None:
        """Hear how many records of a range are done."""
        self._in_hand[range_.index] = num_records
        if num_records > self._furthest.get(range_.index, 0):
            self._furthest[range_.index] = num_records
            self._losses.pop(range_.index, None)
            self._heard_s = now_s

    def finished(self, range_: Range, now_s: float) -> None:
        """Hear that a range is done."""
        del self._in_hand[range_.index]
        self._done_records += range_.stop - range_.start
        self._heard_s = now_s

    def lost(self, range_: Range, why: str, *, begun: bool) -> None:
        """Hear that the worker that had a range is dead.

        Args:
            range_: Will be given out again.
            why: What is known of it.
            begun: The worker had begun with it.
        """
        del self._in_hand[range_.index]
        self._to_do.append(range_)
        self._last_loss = why
        if not begun:
            self._fruitless += 1
            if self._fruitless >= _MAX_FRUITLESS_STARTS * self._num_workers:
                self._reason = (
                    f"{self._fruitless} workers in a row died before they could begin ({why})."
                )
            return
        losses = self._losses[range_.index] = self._losses.get(range_.index, 0) + 1
        if losses >= _MAX_LOSSES_AT_ONE_PLACE:
            self._reason = (
                f"{losses} workers in a row died on {range_}, none further than "
                f"{self._furthest.get(range_.index, 0):,} of them ({why}). Try them in one "
                "process, without --num_workers, to see what crashes there."
            )

    def why_give_up(self, now_s: float) -> str:
        """Return why the work is given up; nothing if it goes on."""
        silent_s = now_s - self._heard_s
        if not self._reason and silent_s > self._give_up_after_s:
            last = f" The last one that died: {self._last_loss}." if self._last_loss else ""
            return (
                f"For {silent_s:.0f} s no worker got further.{last} Is there room for workers, and "
                "does the model take longer? Then give a longer --give_up_after."
            )
        return self._reason
