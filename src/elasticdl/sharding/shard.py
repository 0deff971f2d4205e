"""How the records of a dataset are cut into shards, and in which order they come.

A shard is a range of consecutive records, a whole number of minibatches long (the last one
may be shorter). Everything here is computed from a few integers, never stored as a list: the
order of the shards is a keyed permutation of (seed, epoch), the order of the records within
one of (seed, epoch, shard).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elasticdl.sharding.permutation import derive_seed, permute

DEFAULT_MINIBATCHES_PER_SHARD = 32


@dataclass(frozen=True)
class ShardPlan:
    """The cut of a dataset into shards.

    Attributes:
        num_records: How many records there are.
        minibatch_size: Records in one minibatch.
        minibatches_per_shard: Length of a shard.
        seed: Chooses the orders.
        shuffle: False keeps shards and records in the order they are stored.
    """

    num_records: int
    minibatch_size: int
    minibatches_per_shard: int = DEFAULT_MINIBATCHES_PER_SHARD
    seed: int = 0
    shuffle: bool = True

    @property
    def shard_size(self) -> int:
        """Records in every shard but the last."""
        return self.minibatch_size * self.minibatches_per_shard

    @property
    def num_shards(self) -> int:
        """How many shards an epoch has."""
        return -(-self.num_records // self.shard_size)

    def record_range(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the records (start, stop) of the shard at a position of an epoch's order."""
        shard = position
        if self.shuffle:
            shard = int(permute(position, self.num_shards, derive_seed(self.seed, epoch)))
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.num_records)

    def record_order(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Return the order of a shard's records, as offsets from the first of them."""
        start, stop = self.record_range(epoch, position)
        offsets = np.arange(stop - start, dtype=np.int64)
        if not self.shuffle:
            return offsets
        return permute(offsets, stop - start, derive_seed(self.seed, epoch, position, 1))

    def num_batches(self, epoch: int, position: int) -> int:
        """Return how many minibatches the records of a shard make."""
        start, stop = self.record_range(epoch, position)
        return -(-(stop - start) // self.minibatch_size)
