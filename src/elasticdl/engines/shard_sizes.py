"""Shard sizes: divides training data into shards, as a compromise between mixing and cost.

A unit is the smallest part of a source that is worth reading at once, such as a row group of a
Parquet file. If all records fit into memory (`units.CACHE_BYTES`), or if each record is a separate
unit (images), records are shuffled one by one. Otherwise units are shuffled as blocks, so that each
unit is read once per epoch, and a shard is long enough to mix many blocks:

    records fit into memory      a block is a record, a shard 32 minibatches
    a record is a unit           as above
    otherwise                    a block is a unit, a shard 128 of them, at most 256 MiB

`data/units.py` defines units; `sharding/epoch_order.py` defines plans;
`sharding/ledger.py` assigns shards to ranks.

Callers: `record_data.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data import units as data_units
from elasticdl.sharding.epoch_order import DEFAULT_MINIBATCHES_PER_SHARD, ShardPlan

if TYPE_CHECKING:
    from elasticdl.data.units import Units
    from elasticdl.job import TrainingOptions
    from elasticdl.sharding.epoch_order import Ints

_log = logging.getLogger("elasticdl")

MAX_SHARD_BYTES = 256 * 2**20
"""Maximum size of the records that a process holds in memory to mix them."""

_BLOCKS_PER_SHARD = 128
# With fewer blocks, sorted labels visibly come in clusters: the class entropy of ten blocks is 5 %
# below that of a shuffle of all records.
_FEW_BLOCKS = 40
# Minimum number of shards for a pipeline, because a single worker trains on each whole shard.
_PIPELINE_SHARDS = 8


def plan_shards(units: Units, options: TrainingOptions, *, splits: bool) -> ShardPlan:
    """Return the plan that divides the records into shards.

    Args:
        units: Layout of the records in their source.
        options: Minibatch size, seed, and whether to shuffle.
        splits: Whether several workers can train on parts of the same shard. If not,
            large data is divided into more shards, so that there are enough for all workers.
    """
    size, num_records = options.minibatch_size, int(units.sizes.sum())
    record_bytes = max(1, -(-units.memory_bytes // num_records))
    most = max(1, MAX_SHARD_BYTES // (size * record_bytes))
    length = min(DEFAULT_MINIBATCHES_PER_SHARD, most, -(-num_records // size))
    blocks: tuple[tuple[int, int], ...] = ()
    is_large = units.memory_bytes > data_units.CACHE_BYTES
    if options.shuffle and is_large and int(units.sizes.max()) > 1:
        sizes = _blocks(units, record_bytes)
        wanted = min(_BLOCKS_PER_SHARD * num_records // len(sizes), num_records)
        if not splits:
            wanted = min(wanted, num_records // _PIPELINE_SHARDS)
        length = max(length, min(wanted // size, most))
        blocks = _run_lengths(sizes)
        _warn(length * size, sizes, record_bytes)
    return ShardPlan(
        num_records=num_records,
        minibatch_size=size,
        minibatches_per_shard=length,
        seed=options.seed,
        shuffle=options.shuffle,
        blocks=blocks,
    )


def _blocks(units: Units, record_bytes: int) -> Ints:
    """Return the number of records in each block of the data.

    A block is a unit, or several adjacent units that are too small to be read one at a time.
    """
    least = max(
        1,
        (data_units.REMOTE_UNIT_BYTES if units.remote else data_units.LOCAL_UNIT_BYTES)
        // record_bytes,
    )
    ends = np.cumsum(units.sizes)
    # All units that end within the same stretch of records form one block.
    stretch = (ends - 1) // least
    last = np.append(stretch[1:] != stretch[:-1], True)
    sizes = np.diff(ends[last], prepend=0)
    return np.asarray(sizes[sizes > 0], np.int64)


def _run_lengths(sizes: Ints) -> tuple[tuple[int, int], ...]:
    """Compress a list of sizes to pairs (size, number of consecutive repetitions).

    For example, 3, 3 and 2 become (3, 2) and (2, 1).
    """
    starts = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    counts = np.diff(np.append(starts, len(sizes)))
    return tuple(zip(sizes[starts].tolist(), counts.tolist(), strict=True))


def _warn(shard_size: int, sizes: Ints, record_bytes: int) -> None:
    """Log a warning if records are mixed noticeably less than in a shuffle of all records."""
    mixed = shard_size * len(sizes) / sizes.sum()
    if mixed < min(_FEW_BLOCKS, len(sizes)):
        _log.warning(
            "Only %d records are shuffled at a time, from about %d contiguous blocks of the data "
            "of %.1f MiB each: more blocks do not fit into %d MiB. If the data is sorted, for "
            "example by label or time, rewrite it in smaller chunks or row groups, or in another "
            "order.",
            shard_size,
            max(1, round(mixed)),
            record_bytes * sizes.mean() / 2**20,
            MAX_SHARD_BYTES // 2**20,
        )
