"""Range queue: assigns ranges of records to workers, and decides when to give up.

    queued --take--> assigned --finished--> done
      ^                |
      +----- lost -----+   (to the end of the queue: a range that kills every worker must not
                            delay the other ranges)

A death has no lasting effect: a range is assigned again any number of times, unless it kills one
worker after another at the same position. Times are passed in and Ray is not used, so a unit test
can reproduce every situation.

Callers: `inference.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.data.wording import record_range

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANGES_PER_WORKER = 4
# The size of a part of a prediction in one process (`prediction/parts.py`).
MAX_RECORDS_PER_RANGE = 1 << 16

# Per worker: if this many in a row die before loading the model, the environment is the cause.
_MAX_FRUITLESS_STARTS = 5
# If this many workers in a row die at one position, the records or the model are the cause.
_MAX_LOSSES_AT_ONE_PLACE = 10


@dataclass(frozen=True)
class Range:
    """Range of records that is assigned to one worker at a time.

    Attributes:
        index: Number of the range, from 0.
        start: First record.
        stop: One past the last record.
    """

    index: int
    start: int
    stop: int

    def __str__(self) -> str:
        """Return text such as `records 0 to 99` for messages."""
        return record_range(self.start, self.stop - 1)


def records_per_range(num_records: int, unit: int, num_workers: int) -> int:
    """Return the number of records in a range, for about four ranges per worker, within limits.

    Args:
        num_records: Number of all records.
        unit: A range is a multiple of this many records, and at least this many.
        num_workers: Number of workers that share the records.

    Example:
        >>> records_per_range(100_000, 256, 4), records_per_range(300, 256, 4)
        (6144, 256)
    """
    wanted = min(num_records // (_RANGES_PER_WORKER * num_workers), MAX_RECORDS_PER_RANGE)
    return max(unit, wanted // unit * unit)


def split_into_ranges(num_records: int, size: int) -> list[Range]:
    """Split all records into ranges of `size` records; the last one may be shorter.

    Example:
        >>> [(range.start, range.stop) for range in split_into_ranges(5, 2)]
        [(0, 2), (2, 4), (4, 5)]
    """
    starts = range(0, num_records, size)
    return [
        Range(index, start, min(start + size, num_records)) for index, start in enumerate(starts)
    ]


class RangeQueue:
    """Queue of a job's ranges of records: assigns them to workers, and decides when to give up.

    All times are seconds of one clock.

    Args:
        ranges: All ranges, in the order of their `index`.
        num_workers: Number of workers; each is assigned one range at a time.
        give_up_after_s: Give up when no worker has made progress for this many seconds.
        now_s: The current time.
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
        """Whether all ranges are done."""
        return not self._to_do and not self._in_hand

    @property
    def records_done(self) -> int:
        """Number of records done, including those of ranges that are not finished yet."""
        return self._done_records + sum(self._in_hand.values())

    def take(self) -> Range | None:
        """Return the next range, now assigned; None if none is queued or every worker has one."""
        if not self._to_do or len(self._in_hand) >= self._num_workers:
            return None
        range_ = self._to_do.popleft()
        self._in_hand[range_.index] = 0
        return range_

    def begun(self, now_s: float) -> None:
        """Record that a worker has loaded the model and starts on its range.

        This counts as progress, so it postpones giving up.
        """
        self._heard_s = now_s
        self._fruitless = 0

    def advanced(self, range_: Range, num_records: int, now_s: float) -> None:
        """Record that `num_records` records, counted from the start of a range, are done."""
        self._in_hand[range_.index] = num_records
        if num_records > self._furthest.get(range_.index, 0):
            self._furthest[range_.index] = num_records
            self._losses.pop(range_.index, None)
            self._heard_s = now_s

    def finished(self, range_: Range, now_s: float) -> None:
        """Record that a range is done, so that its worker can take the next one."""
        del self._in_hand[range_.index]
        self._done_records += range_.stop - range_.start
        self._heard_s = now_s

    def lost(self, range_: Range, why: str, *, begun: bool) -> None:
        """Record that the worker of a range has died; return the range to the queue.

        After too many deaths in a row, `why_give_up` returns a reason to end the job.

        Args:
            range_: The range.
            why: Description of the death, such as "ran out of memory", for that reason.
            begun: Whether the worker had loaded the model and begun with the range.
        """
        del self._in_hand[range_.index]
        self._to_do.append(range_)
        self._last_loss = why
        if not begun:
            self._fruitless += 1
            if self._fruitless >= _MAX_FRUITLESS_STARTS * self._num_workers:
                self._reason = (
                    f"{self._fruitless} workers in a row died before they started to work ({why})."
                )
            return
        losses = self._losses[range_.index] = self._losses.get(range_.index, 0) + 1
        if losses >= _MAX_LOSSES_AT_ONE_PLACE:
            self._reason = (
                f"{losses} workers in a row died on {range_}, after at most "
                f"{self._furthest.get(range_.index, 0):,} of them ({why}). Process these records "
                "in one process, without --num_workers, to see what crashes."
            )

    def why_give_up(self, now_s: float) -> str:
        """Return why the job must fail, such as too many deaths in a row; empty to continue."""
        silent_s = now_s - self._heard_s
        if not self._reason and silent_s > self._give_up_after_s:
            last = f" The last failure: {self._last_loss}." if self._last_loss else ""
            return (
                f"No worker made progress for {silent_s:.0f} s.{last} Check that the cluster has "
                "free resources for workers. If the model needs longer, increase --give_up_after."
            )
        return self._reason
