"""Warns of columns whose values float32 cannot tell apart.

Not a model: `elasticdl zoo list` skips this file. Used by `columns.py`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.zoo.prebuilt.column_entries import how_to_leave_out
from elasticdl.zoo.prebuilt.column_kinds import DAY_S, Number, Time

if TYPE_CHECKING:
    Array: TypeAlias = np.ndarray[Any, Any]

_log = logging.getLogger("elasticdl")
# Columns that were warned of.
_warned: set[str] = set()
# Values that are this many standard deviations away from 0 have two digits that differ.
_NARROW = 1e5
# Fewer values may be neighbours in a sorted table.
_FEWEST = 1000


@dataclass
class Spread:
    """Mean and deviation of a column's numbers, [size], over all training batches so far.

    Attributes:
        count: Number of known values.
        mean: Their mean.
        squares: Sum of their squared distances from the mean.
    """

    count: Array = field(default_factory=lambda: np.zeros(1))
    mean: Array = field(default_factory=lambda: np.zeros(1))
    squares: Array = field(default_factory=lambda: np.zeros(1))

    def add(self, values: Array) -> None:
        """Add the values of a batch, float64 [batch, size]; NaN is a missing value."""
        # Not nanmean and nanstd, which warn about a batch without a value.
        known = ~np.isnan(values)
        count = known.sum(axis=0)
        mean = np.where(known, values, 0).sum(axis=0) / np.maximum(count, 1)
        squares = (np.where(known, values - mean, 0) ** 2).sum(axis=0)
        # As in Chan, Golub and LeVeque (1979): sums of large squares would lose the differences.
        step = mean - self.mean
        share = count / np.maximum(self.count + count, 1)
        self.squares = self.squares + squares + step**2 * self.count * share
        self.mean = self.mean + step * share
        self.count = self.count + count


def warn_of_lost_differences(source: Number | Time, values: Array, so_far: Spread) -> None:
    """Warn if float32 would lose the differences between a column's values; once per process.

    A few rows are not enough to decide: neighbours in a table that is sorted by time differ little.

    Args:
        source: The column.
        values: Its values in a batch for training, float64 [batch, size].
        so_far: Spread of the values in earlier batches; the batch is added to it.
    """
    so_far.add(values)
    mean = so_far.mean
    deviation = np.sqrt(so_far.squares / np.maximum(so_far.count, 1))
    enough = so_far.count >= _FEWEST
    lost = enough & (deviation > 0) & (np.abs(mean) > _NARROW * deviation)
    if lost.any() and source.column not in _warned:
        _warned.add(source.column)
        by = float(mean[lost][0]) * (DAY_S if isinstance(source, Time) else 1) + source.offset
        advice = f'Add "offset": {by:.10g} to its entry in columns'
        # One offset would take away the digits of values that are elsewhere.
        if (np.abs(mean - mean[lost][0]) > _NARROW * deviation).any():
            advice = "Split its lists into columns, which have offsets of their own"
        _log.warning(
            "Column %r has large values that differ little, and the network computes in float32, "
            "which has 7 digits. %s, so that they keep their differences. If it is an identifier, "
            "such as the number of a row, train without it: %s.",
            source.column,
            advice,
            how_to_leave_out(source.column),
        )
