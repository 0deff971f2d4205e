"""Records left out of training, identified by the batch that they were in when workers died.

The records of a batch are a function of the plan, so three numbers identify them: they are small,
they fit into a worker's row of a step, and the ledger keeps them.

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
    """Identifies a batch of a training run.

    Attributes:
        epoch: From 0.
        shard: Position in the epoch's order.
        batch: Number in the shard, from 0.
    """

    epoch: int
    shard: int
    batch: int


def records_of(plan: ShardPlan, batch: BatchId) -> Ints:
    """Return the records of a planned batch: int64, numbers over all files, sorted."""
    first = batch.batch * plan.minibatch_size
    numbers = plan.record_numbers(batch.epoch, batch.shard)[first : first + plan.minibatch_size]
    return np.sort(numbers)


def records_left_out(plan: ShardPlan, left_out: Iterable[BatchId], epoch: int) -> Ints:
    """Return the left-out records of an epoch: int64, numbers over all files, sorted.

    The records of a batch are left out from its own epoch onward. In that epoch they are exactly
    that batch, which then has no record; in later epochs they are spread over several batches.

    Args:
        plan: Division of the data into shards.
        left_out: The batches whose records are left out.
        epoch: From 0.

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
