"""From a place in the ledger to the batches that come next, over shards and epochs.

What a shard's batches are is known to the data (`TrainingData`): records that input functions make
batches of (`record_data.py`), or pipelines of the user's that make them by themselves
(`own_batches.py`). Either way a batch is a function of (seed, epoch, shard, number): it can be made
again, here or on another worker, and is the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from elasticdl.data.batch import Batch, leaves
from elasticdl.sharding.ledger import Ledger, Piece, Row

if TYPE_CHECKING:
    from elasticdl.engines.seams import Validation
    from elasticdl.job import Job
    from elasticdl.sharding.left_out import BatchId
    from elasticdl.sharding.shard import ShardPlan


@dataclass(frozen=True, eq=False)
class FedBatch:
    """A batch and where it stands.

    Attributes:
        epoch: From 0.
        shard: Position in the epoch's order.
        number: Batch of that shard, from 0.
        batch: None if the shard has no batch at all, or if all records of this one are left out.
        finished: It is the shard's last; a piece may end before, the ledger knows where.
        digest: Rolling hash of the shard's batches up to and with this one; 0 where records
            are found by seeking.
        num_left_out: How many of its records are left out (`--skip_bad_records`).
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
        """It counts as a batch, and none of its records is there."""
        return self.batch is None and self.num_left_out > 0


Resume: TypeAlias = Literal["exact", "replayed"]
"""`exact`: a batch is found by its number; `replayed`: those before are read again and compared."""


class TrainingData(Protocol):
    """What is trained on, cut into shards."""

    @property
    def num_records(self) -> int:
        """Examples in an epoch."""
        ...

    @property
    def files(self) -> Sequence[tuple[str, int]]:
        """(name, records or batches) of each part; a training that goes on must find the same."""
        ...

    @property
    def resume(self) -> Resume:
        """How a training finds its place in the middle of an epoch."""
        ...

    def cut(self, job: Job) -> ShardPlan:
        """Return the cut into shards a new training takes."""
        ...

    def batches_per_shard(self, plan: ShardPlan) -> int:
        """Return how many batches all but the last shard have; 0 where nobody knows before."""
        ...

    def minibatch_size(self, plan: ShardPlan) -> int:
        """Return how many examples a full batch has."""
        ...

    def shard_batches(
        self,
        plan: ShardPlan,
        epoch: int,
        piece: Piece,
        left_out: Sequence[BatchId] = (),
        *,
        singly: Callable[[], bool] = lambda: False,
    ) -> Iterator[FedBatch]:
        """Yield the batches of a piece that are not committed yet.

        Args:
            plan: The cut of the data.
            epoch: From 0.
            piece: What is wanted.
            left_out: Batches whose records are left out; none where a pipeline makes batches.
            singly: Whether to decode no record before its batch, so that it is known at which one
                a process dies.
        """
        ...

    def name(self, plan: ShardPlan, batch: BatchId) -> str:
        """Return the files and numbers of the records a batch is made of; empty if unknown."""
        ...

    def example(self, plan: ShardPlan) -> Batch:
        """Return a batch like those to come, for its shapes.

        Raises:
            DataError: There is none.
        """
        ...

    def validation(self, data: str, plan: ShardPlan) -> Validation:
        """Open other data of the same kind, to evaluate on."""
        ...


def training_batches(
    shard_batches: Callable[[int, Piece], Iterator[FedBatch]],
    ledger: Ledger,
    *,
    slot: int,
    slots: Collection[int],
    num_epochs: int,
) -> Iterator[FedBatch]:
    """Yield the batches a slot will get from here on, over shards and epochs.

    A slot by itself gets just these. Among others it is a forecast, made as if all of them
    finished their pieces at the same time: who uses it compares each batch with the ledger.

    Args:
        shard_batches: (Epoch, piece) -> its batches that are not committed yet.
        ledger: Where to start; the caller's ledger goes the same way as it commits.
        slot: Whose batches.
        slots: All that train, `slot` among them.
        num_epochs: Where to end.
    """
    while True:
        ledger = ledger.deal(slots)
        piece = ledger.piece_of(slot)
        if piece is not None:
            yield from shard_batches(ledger.epoch, piece)
        if not ledger.epoch_done:
            ledger = ledger.advance([Row(each, 0, finished=True) for each in ledger.in_hand])
        elif ledger.epoch + 1 < num_epochs:
            ledger = ledger.next_epoch()
        else:
            return


def chained_digest(batch: Batch, before: int) -> int:
    """Return a hash of a batch and of all those before it."""
    for array in leaves((batch.features, batch.labels, batch.weights)):
        # Texts are objects: what lies in the array is where they are, not what they say.
        data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        before = zlib.crc32(data, before)
    return before
