"""Records left out of training (`--skip_bad_records`), stored as the numbers of their batches.

A batch is identified by three numbers (epoch, shard, batch), from which the shard plan computes its
records. So workers exchange only these numbers, and the ledger stores nothing else about a batch.

Callers: `ledger.py`, `engines/` and the audit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from elasticdl.sharding.epoch_order import Ints, ShardPlan


class BatchId(NamedTuple):
    """Identity of a batch in a training run: the same numbers always mean the same records.

    Attributes:
        epoch: From 0.
        shard: Position in the epoch's order.
        batch: Number in the shard, from 0.
    """

    epoch: int
    shard: int
    batch: int


def records_of(plan: ShardPlan, batch: BatchId) -> Ints:
    """Return the records that a plan assigns to a batch: int64, numbers over all files, sorted."""
    first = batch.batch * plan.minibatch_size
    numbers = plan.record_numbers(batch.epoch, batch.shard)[first : first + plan.minibatch_size]
    return np.sort(numbers)


def records_left_out(plan: ShardPlan, left_out: Iterable[BatchId], epoch: int) -> Ints:
    """Return the records to skip in an epoch: int64, numbers over all files, sorted.

    The records of a left-out batch are skipped from the epoch of that batch onward. In that epoch
    the batch is left without a record; in later epochs its records are spread over other batches.

    Args:
        plan: Division of the data into shards.
        left_out: The batches whose records are left out; those of later epochs have no effect.
        epoch: The epoch, from 0.

    Example:
        >>> from elasticdl.sharding.epoch_order import ShardPlan
        >>> plan = ShardPlan(num_records=8, minibatch_size=2, shuffle=False)
        >>> bad = [BatchId(epoch=1, shard=0, batch=2)]
        >>> [records_left_out(plan, bad, epoch).tolist() for epoch in range(3)]
        [[], [4, 5], [4, 5]]
    """
    return _records(plan, tuple(batch for batch in left_out if batch.epoch <= epoch))


# Cached: it is called once per shard, and each batch requires computing the order of an epoch.
@functools.lru_cache(maxsize=4)
def _records(plan: ShardPlan, batches: tuple[BatchId, ...]) -> Ints:
    if not batches:
        return np.empty(0, np.int64)
    return np.unique(np.concatenate([records_of(plan, batch) for batch in batches]))
