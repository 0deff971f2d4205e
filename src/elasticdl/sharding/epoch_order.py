"""Shards of a dataset: how its records are divided, and in which order they are trained on.

An epoch's order is a keyed permutation of blocks of consecutive records. A shard is a section of
that order, a whole number of minibatches long (the last one may be shorter); the records within it
are permuted again, so that each minibatch of the shard mixes records of all its blocks:

    stored      | A | B | C | D | E | F | G | H |
    epoch       | F | B | H | A | D | G | C | E |       blocks, by (seed, epoch)
    shards      |    F B H A    |    D G C E    |       records, by (seed, epoch, shard)

Where a block is a single record, the epoch's order is a permutation of all records, as in a plain
script. Everything is computed from the numbers of a `ShardPlan` and never stored as a list of
records: any shard can be computed alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.sharding.permutation import derive_seed, permute

Ints: TypeAlias = npt.NDArray[np.int64]

DEFAULT_MINIBATCHES_PER_SHARD = 32

_PLACES_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class ShardPlan:
    """Division of a dataset into shards, and the order of training.

    Attributes:
        num_records: Number of records.
        minibatch_size: Records in one minibatch.
        minibatches_per_shard: Length of a shard, in minibatches.
        seed: Determines the order of every epoch and shard.
        shuffle: Whether to permute; if not, records keep the order in which they are stored.
        blocks: Lengths of the blocks in stored order, as pairs (records in a block, number of
            consecutive blocks of this size); their records sum to `num_records`. If empty, each
            record is a block.

    Raises:
        ValueError: The blocks do not have `num_records` records in total.

    Example:
        >>> plan = ShardPlan(6, minibatch_size=2, minibatches_per_shard=1, blocks=((2, 3),))
        >>> [sorted(plan.record_numbers(0, shard).tolist()) for shard in range(3)]
        [[0, 1], [4, 5], [2, 3]]
    """

    num_records: int
    minibatch_size: int
    minibatches_per_shard: int = DEFAULT_MINIBATCHES_PER_SHARD
    seed: int = 0
    shuffle: bool = True
    blocks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        # Checkpoints keep plans as JSON, which has only lists.
        pairs = tuple((int(size), int(count)) for size, count in self.blocks)
        object.__setattr__(self, "blocks", pairs)
        total = sum(size * count for size, count in pairs)
        if pairs and (total != self.num_records or any(min(pair) < 1 for pair in pairs)):
            raise ValueError(f"The blocks have {total} records; expected {self.num_records}.")

    @property
    def shard_size(self) -> int:
        """Number of records in every shard except the last, which may have fewer."""
        return self.minibatch_size * self.minibatches_per_shard

    @property
    def num_shards(self) -> int:
        """Number of shards in an epoch."""
        return -(-self.num_records // self.shard_size)

    def span(self, position: int) -> tuple[int, int]:
        """Return the range (start, stop) of a shard's records, as positions in the epoch's order.

        Without shuffling, positions are also record numbers.

        Args:
            position: Position of the shard in the epoch's order, from 0.
        """
        start = position * self.shard_size
        return start, min(start + self.shard_size, self.num_records)

    def num_batches(self, position: int) -> int:
        """Return the number of minibatches in the shard at a position in the epoch's order."""
        start, stop = self.span(position)
        return -(-(stop - start) // self.minibatch_size)

    def record_numbers(self, epoch: int, position: int) -> Ints:
        """Return the records of a shard in training order.

        Args:
            epoch: From 0.
            position: Position of the shard in the epoch's order.

        Returns:
            int64 [records of the shard]: record numbers, counted from 0 over all files.
        """
        start, stop = self.span(position)
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        key = derive_seed(self.seed, epoch)
        if not self.blocks:
            return _permuted(start, stop, self.num_records, key)
        stored = _laid_out(self.blocks, key).records(start, stop)
        order = np.arange(len(stored), dtype=np.int64)
        mixed: Ints = stored[
            permute(order, len(stored), derive_seed(self.seed, epoch, position, 1))
        ]
        return mixed


class _BlockOrder:
    """Order of an epoch that permutes blocks, but keeps the order of the records in each block.

    Args:
        sizes: Number of records in each block, in stored order.
        key: Seed of the permutation.
    """

    def __init__(self, sizes: Ints, key: int) -> None:
        order = permute(np.arange(len(sizes), dtype=np.int64), len(sizes), key)
        self._firsts = (np.cumsum(sizes) - sizes)[order]
        self._ends = np.cumsum(sizes[order])
        self._begins = self._ends - sizes[order]

    def records(self, start: int, stop: int) -> Ints:
        """Return the numbers of the records at the positions `start` to `stop` (exclusive)."""
        low = int(np.searchsorted(self._ends, start, "right"))
        high = int(np.searchsorted(self._begins, stop, "left"))
        begins = np.maximum(self._begins[low:high], start)
        lengths = np.minimum(self._ends[low:high], stop) - begins
        firsts = self._firsts[low:high] + begins - self._begins[low:high]
        # The number of a record minus its position is the same within a block.
        numbers: Ints = np.arange(start, stop, dtype=np.int64) + np.repeat(firsts - begins, lengths)
        return numbers


def _permuted(start: int, stop: int, size: int, key: int) -> Ints:
    """Return the record numbers at some positions of an epoch in which single records are permuted.

    Args:
        start: First position.
        stop: One past the last position.
        size: Number of records.
        key: Seed of the permutation.
    """
    first = start // _PLACES_AT_ONCE
    last = (stop - 1) // _PLACES_AT_ONCE
    stretches = [_stretch(index, size, key) for index in range(first, last + 1)]
    offset = first * _PLACES_AT_ONCE
    return np.concatenate(stretches)[start - offset : stop - offset]


# Cached in ranges: computing a few thousand positions at a time takes ten times as long for each.
@functools.lru_cache(maxsize=4)
def _stretch(index: int, size: int, key: int) -> Ints:
    start = index * _PLACES_AT_ONCE
    places = np.arange(start, min(start + _PLACES_AT_ONCE, size), dtype=np.int64)
    return permute(places, size, key)


# For this epoch and the next one, which a feed starts ahead of training.
@functools.lru_cache(maxsize=2)
def _laid_out(blocks: tuple[tuple[int, int], ...], key: int) -> _BlockOrder:
    pairs = np.array(blocks, np.int64)
    return _BlockOrder(np.repeat(pairs[:, 0], pairs[:, 1]), key)
