"""Feed: yields the batches that a rank has to train on next, across shards and epochs.

The ledger (`sharding/ledger.py`) records which batches the model was trained on. The feed yields
the batches that are not in the ledger yet.

The batches of a shard come from the training data (`TrainingData`): either records that input
functions turn into batches (`record_data.py`), or user pipelines that yield batches
(`iterable_data.py`). Either way a batch is a function of (seed, epoch, shard, number): it can be
prepared again, here or on another worker, with the same result.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from elasticdl.data.batch import Batch, leaves
from elasticdl.sharding.ledger import LeaseUpdate, Ledger, ShardLease

if TYPE_CHECKING:
    from elasticdl.data.record_source import RecordSource
    from elasticdl.job import Job
    from elasticdl.sharding.epoch_order import ShardPlan
    from elasticdl.sharding.left_out import BatchId


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """A batch of training data and its position.

    Attributes:
        epoch: Epoch, from 0.
        shard: Position of the shard in the epoch's order.
        number: Number of the batch in the shard, from 0.
        batch: The batch. None if all of its records are left out, or if a pipeline has no further
            batch for the shard: the object then only reports that the shard is finished.
        finished: Whether it is the last batch of the shard. A rank's lease may be only a part of
            the shard and end earlier (`ledger.ShardLease.stop`).
        digest: Hash of all batches of the shard up to and including this one. A resumed run reads a
            user's pipeline again, and verifies with the hash that it yields the same batches. 0 if
            each batch is read directly, without the earlier ones.
        num_left_out: Number of its records that are left out (`--skip_bad_records`).
    """

    epoch: int
    shard: int
    number: int
    batch: Batch | None
    finished: bool
    digest: int = 0
    num_left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the batch exists but is empty, because all of its records are left out."""
        return self.batch is None and self.num_left_out > 0


def place_of(fed: TrainingBatch) -> str:
    """Return the epoch and the records of a batch, for an error.

    Without known records, the shard and the batch's number in it are named.
    """
    epoch = f"epoch {fed.epoch + 1}"
    if fed.batch is not None and fed.batch.where is not None and (named := fed.batch.where()):
        return f"{epoch}: {named}"
    return f"{epoch}, shard {fed.shard}, batch {fed.number}"


@dataclass(frozen=True)
class Validation:
    """Validation data for evaluation during training.

    Attributes:
        num_shards: Number of shards.
        batches: Function (shard number) -> batches of the shard.
        name: Function (shard number) -> text that names the shard's records by file and record
            number, for messages; empty if unknown.
        source: The source of the records; None if the batches do not come from records.
    """

    num_shards: int
    batches: Callable[[int], Iterator[Batch]]
    name: Callable[[int], str] = lambda _: ""
    source: RecordSource | None = None


Resume: TypeAlias = Literal["exact", "replayed"]
"""How a position is found: `exact` by the batch number, `replayed` by reading and comparing all
batches before it."""


class TrainingData(Protocol):
    """Interface to training data in shards: from records or from a user's pipeline of batches."""

    @property
    def num_records(self) -> int:
        """Number of examples in an epoch."""
        ...

    @property
    def files(self) -> Sequence[tuple[str, int]]:
        """(Name, number of records or batches) of each file; must be unchanged to resume a job."""
        ...

    @property
    def resume(self) -> Resume:
        """How training resumes in the middle of an epoch.

        `exact` goes directly to the next batch; `replayed` first reads all batches before it again.
        """
        ...

    def plan_shards(self, job: Job) -> ShardPlan:
        """Return the shard plan for a new job."""
        ...

    def batches_per_shard(self, plan: ShardPlan) -> int:
        """Return the number of batches per shard; 0 if unknown. The last shard may have fewer."""
        ...

    def minibatch_size(self, plan: ShardPlan) -> int:
        """Return the number of examples in a full batch."""
        ...

    def shard_batches(
        self,
        plan: ShardPlan,
        epoch: int,
        lease: ShardLease,
        left_out: Sequence[BatchId] = (),
        *,
        one_by_one: Callable[[], bool] = lambda: False,
    ) -> Iterator[TrainingBatch]:
        """Yield the batches of a lease that are not committed yet.

        Args:
            plan: The shard plan.
            epoch: Epoch, from 0.
            lease: The shard, or part of one, that is assigned to this rank, and its next batch.
            left_out: Batches whose records are left out; ignored if a pipeline yields the batches.
            one_by_one: Function () -> whether to decode records one batch at a time, so that the
                batch at which a process dies is known.
        """
        ...

    def name(self, plan: ShardPlan, batch: BatchId) -> str:
        """Name a batch's records for messages, such as `a.csv, record 3`; empty if unknown."""
        ...

    def example(self, plan: ShardPlan) -> Batch:
        """Return a batch with the shapes of the data, to build a model with.

        Raises:
            DataError: The data has no batch.
        """
        ...

    def validation(self, data: str, plan: ShardPlan) -> Validation:
        """Open validation data, which is read in the same way as the training data.

        Args:
            data: Location of the validation data.
            plan: The shard plan of the training data.

        Raises:
            DataError: The data cannot be used.
        """
        ...


def training_batches(
    shard_batches: Callable[[int, ShardLease], Iterator[TrainingBatch]],
    ledger: Ledger,
    *,
    rank: int,
    ranks: Collection[int],
    num_epochs: int,
) -> Iterator[TrainingBatch]:
    """Yield the batches that a rank will be assigned from here on, across shards and epochs.

    Batches are prepared before they are needed, so this has to predict the leases. For a single
    rank the prediction is right. For several ranks it assumes that all finish their leases at the
    same time, so the caller has to compare each batch with the ledger.

    Args:
        shard_batches: Function (epoch, lease) -> batches of the lease that are not committed yet.
        ledger: The ledger to start from. It is not changed: the caller records commits in its own.
        rank: The rank to yield batches for.
        ranks: All ranks that train, including `rank`.
        num_epochs: Number of epochs to train.
    """
    while True:
        ledger = ledger.assign(ranks)
        lease = ledger.lease_of(rank)
        if lease is not None:
            yield from shard_batches(ledger.epoch, lease)
        if not ledger.epoch_done:
            ledger = ledger.advance([LeaseUpdate(each, 0, finished=True) for each in ledger.leased])
        elif ledger.epoch + 1 < num_epochs:
            ledger = ledger.next_epoch()
        else:
            return


def chained_digest(batch: Batch, before: int) -> int:
    """Return the CRC-32 of a batch and all before it, to verify that a pipeline repeats them.

    Args:
        batch: The batch.
        before: The CRC-32 of all batches before it; 0 for the first batch.
    """
    for array in leaves((batch.features, batch.labels, batch.weights)):
        # Strings are objects: the array holds pointers to them, not their content.
        data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        before = zlib.crc32(data, before)
    return before
