"""Training on batches that a pipeline of the user's makes by itself, epoch after epoch.

The plan's records are the batches of an epoch, in the order they come. A pipeline is built anew
for each epoch, with random numbers that are a function of (seed, epoch), so that the batches of
an epoch are the same each time it is read. What is indexed is entered anywhere; the rest is read
again from the start, and a CRC chained over all of the epoch's batches shows that they are those
that were trained on.

Callers: `material.py`.
"""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from elasticdl.data.batch import Batch, batch_bytes
from elasticdl.definition import BatchesInput, Epochs, Mode, ModelDefinition
from elasticdl.engines.feed import FedBatch, Resume, chained_digest
from elasticdl.engines.randomness import Stream, forget_kernels, seeded
from elasticdl.engines.seams import Validation
from elasticdl.errors import DataError, DefinitionError
from elasticdl.sharding.permutation import derive_seed
from elasticdl.sharding.shard import ShardPlan

if TYPE_CHECKING:
    from elasticdl.job import Job
    from elasticdl.sharding.ledger import Piece
    from elasticdl.sharding.left_out import BatchId

_log = logging.getLogger("elasticdl")
# On many workers, the batches one of them takes while the others take those that follow.
_BATCHES_PER_SHARD = 8
_BATCHES_PER_VALIDATION_SHARD = 32
# What a feed had made ahead when another one takes its place: so far back is no new beginning.
_MAX_BYTES_BEHIND = 64 * 2**20
_ESTIMATE_AFTER_S = 2.0
# Seeds of the epochs that were begun in this process.
_begun: set[int] = set()


class _Made(NamedTuple):
    """A batch of an epoch.

    Attributes:
        number: From 0, in the epoch.
        batch: The batch.
        digest: Of all of the epoch's batches up to it; 0 where nothing is read twice.
    """

    number: int
    batch: Batch
    digest: int


@dataclass(eq=False)
class Reading:
    """A pipeline that is read forward, and begun again where something earlier is asked for.

    Attributes:
        epochs: The pipeline.
        seed: Of its random numbers.
        tell: Told how long a long replay will take.
    """

    epochs: Epochs
    seed: int
    tell: Callable[[str], None] = _log.info
    _epoch: int = field(default=-1, init=False)
    _next: int = field(default=0, init=False)
    _digest: int = field(default=0, init=False)
    _batches: Iterator[Batch] = field(default_factory=lambda: iter(()), init=False)
    _behind: collections.deque[_Made] = field(default_factory=collections.deque, init=False)
    _bytes_behind: int = field(default=0, init=False)

    def batches(self, epoch: int, start: int, stop: int) -> Iterator[_Made]:
        """Yield the batches of an epoch from `start` to the one before `stop`.

        Raises:
            DefinitionError: The pipeline ends before.
        """
        for number in range(start, stop):
            kept = self._kept(epoch, number)
            if kept is None:
                self._go_to(epoch, number)
                kept = self._make()
            yield kept

    def digest_before(self, epoch: int, number: int) -> int:
        """Return the digest of all batches before one; 0 where nothing is read twice."""
        if self.epochs.indexed or number == 0:
            return 0
        kept = self._kept(epoch, number - 1)
        if kept is None:
            self._go_to(epoch, number)
            return self._digest
        return kept.digest

    def _kept(self, epoch: int, number: int) -> _Made | None:
        if epoch != self._epoch or not self._behind:
            return None
        at = number - self._behind[0].number
        return self._behind[at] if 0 <= at < len(self._behind) else None

    def _go_to(self, epoch: int, number: int) -> None:
        behind = epoch != self._epoch or number < self._next
        if behind or (self.epochs.indexed and number != self._next):
            self._begin(epoch, number if self.epochs.indexed else 0)
        started, told, first = time.monotonic(), False, self._next
        while self._next < number:
            self._make()
            spent = time.monotonic() - started
            if not told and spent > _ESTIMATE_AFTER_S:
                told = True
                left = (number - self._next) * spent / (self._next - first)
                self.tell(
                    f"Reading the first {number:,} batches of epoch {epoch + 1} again, to go on "
                    f"after them: {left:.0f} s more."
                )

    def _begin(self, epoch: int, number: int) -> None:
        # Until it has begun; if it cannot, who asks again must not get batches of the one before.
        self._epoch = -1
        self._forget()
        seed = derive_seed(self.seed, epoch, 2)
        if seed in _begun:
            forget_kernels()
        _begun.add(seed)
        if not self.epochs.indexed:
            self._batches = Stream(seed).drawn(lambda: self.epochs.begin(epoch, number))
        else:
            with seeded(seed):
                batches = self.epochs.begin(epoch, number)
            self._batches = _each_seeded(batches, seed, number)
        self._epoch, self._next, self._digest = epoch, number, 0

    def _make(self) -> _Made:
        batch = next(self._batches, None)
        if batch is None:
            raise DefinitionError(
                f"{self.epochs.name} ended after {self._next} batches of an epoch; it was said to "
                f"have {self.epochs.num_batches}. Correct the number, or repeat the data."
            )
        if not self.epochs.indexed:
            self._digest = chained_digest(batch, self._digest)
        where = functools.partial(_named, self.epochs.name, self._epoch, self._next)
        made = _Made(self._next, replace(batch, where=where), self._digest)
        self._next += 1
        self._behind.append(made)
        self._bytes_behind += batch_bytes(batch)
        while self._bytes_behind > _MAX_BYTES_BEHIND and len(self._behind) > 1:
            self._bytes_behind -= batch_bytes(self._behind.popleft().batch)
        return made

    def _forget(self) -> None:
        self._behind.clear()
        self._bytes_behind = 0


class OwnBatches:
    """A pipeline of the user's as training data; see `feed.TrainingData`.

    Args:
        definition: What is trained.
        job: What is asked for.

    Raises:
        DataError: An epoch has no batch.
        DefinitionError: There are workers, and they would not see the same batches.
    """

    def __init__(self, definition: ModelDefinition, job: Job) -> None:
        assert isinstance(definition.input, BatchesInput)  # noqa: S101 - who asks has looked
        self._input = definition.input
        # Loaders may draw, and shuffle, when they are asked for their data.
        with seeded(job.training.seed):
            self.epochs = self._input.open_epochs(job.data, Mode.TRAINING)
        if self.epochs.num_batches < 1:
            raise DataError(f"{self.epochs.name}: an epoch has no batch.")
        if job.workers is not None and not self.epochs.elsewhere:
            raise DefinitionError(
                f"{self.epochs.name} is a Python generator, and workers would each get batches of "
                "their own from it. Train in one process (without --num_workers), "
                "or let it be a tf.data.Dataset or a keras.utils.PyDataset."
            )
        self._data = job.data
        self.reading = Reading(self.epochs, job.training.seed)

    @property
    def num_records(self) -> int:
        """Examples in an epoch."""
        return self.epochs.num_examples

    @property
    def files(self) -> Sequence[tuple[str, int]]:
        """Return the one place the data is at, and how many batches an epoch has."""
        return [(self._data, self.epochs.num_batches)]

    @property
    def resume(self) -> Resume:
        """How the pipeline is entered."""
        return "exact" if self.epochs.indexed else "replayed"

    def cut(self, job: Job) -> ShardPlan:
        """Return one shard for one process; for workers, short ones that they share an epoch by."""
        num_batches = self.epochs.num_batches
        return ShardPlan(
            num_records=num_batches,
            minibatch_size=1,
            minibatches_per_shard=num_batches if job.workers is None else _BATCHES_PER_SHARD,
            seed=job.training.seed,
            # The pipeline has its own order.
            shuffle=False,
        )

    def batches_per_shard(self, plan: ShardPlan) -> int:
        """Return the plan's number."""
        return plan.minibatches_per_shard

    def minibatch_size(self, plan: ShardPlan) -> int:
        """Return the size of the first batch."""
        return self.example(plan).num_examples

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

        Raises:
            DefinitionError: The pipeline does not yield the same batches again.
        """
        del left_out, singly
        start, end = plan.span(piece.shard)
        first = start + piece.committed
        stop = min(end, start + piece.stop) if piece.stop else end
        if first >= stop:
            # The rear part of a shard that is shorter than others.
            yield FedBatch(epoch, piece.shard, piece.committed, None, finished=True)
            return
        # A rear part that nobody has begun has no digest yet.
        if piece.digest and self.reading.digest_before(epoch, first) != piece.digest:
            raise DefinitionError(
                f"{self.epochs.name} does not yield the same batches again: the first "
                f"{first} of epoch {epoch + 1} differ from those that were trained on. Draw "
                "random numbers from tf.random, numpy.random or random (they are seeded for you), "
                "not from the clock or the system, and let the order of files not depend on the "
                "folder."
            )
        for made in self.reading.batches(epoch, first, stop):
            number = made.number - start
            last = made.number + 1 == end
            yield FedBatch(epoch, piece.shard, number, made.batch, last, made.digest)

    def name(self, plan: ShardPlan, batch: BatchId) -> str:
        """Return nothing: the pipeline alone knows its records."""
        del plan, batch
        return ""

    def example(self, plan: ShardPlan) -> Batch:
        """Return the first batch; the epochs themselves begin anew."""
        del plan
        return self._first

    @functools.cached_property
    def _first(self) -> Batch:
        return next(Reading(self.epochs, self.reading.seed).batches(0, 0, 1)).batch

    def validation(self, data: str, plan: ShardPlan) -> Validation:
        """Open the user's validation pipeline.

        Raises:
            DataError: It has no batch.
        """
        validation, _ = open_validation(self._input, data, plan.seed)
        return validation


def open_validation(pipeline: BatchesInput, data: str, seed: int) -> tuple[Validation, int]:
    """Open the validation pipeline of a model that makes its own batches.

    Args:
        pipeline: The model's input.
        data: Where its data is.
        seed: Of the training, so that an evaluation draws the same each time.

    Returns:
        The batches, and how many examples they have.

    Raises:
        DataError: It has no batch.
    """
    with seeded(seed):
        epochs = pipeline.open_epochs(data, Mode.EVALUATION)
    if epochs.num_batches < 1:
        raise DataError(f"{epochs.name}: there is no batch to evaluate on.")
    cut = ShardPlan(epochs.num_batches, 1, _BATCHES_PER_VALIDATION_SHARD, shuffle=False)
    # Else it would draw what the first epoch of the training draws.
    reading = Reading(epochs, derive_seed(seed, 0, 3))

    def batches(shard: int) -> Iterator[Batch]:
        start, stop = cut.span(shard)
        return (made.batch for made in reading.batches(0, start, stop))

    return Validation(cut.num_shards, batches), epochs.num_examples


def _named(name: str, epoch: int, number: int) -> str:
    return f"batch {number} of epoch {epoch + 1} of {name}"


def _each_seeded(batches: Iterator[Batch], seed: int, first: int) -> Iterator[Batch]:
    """Yield batches of which each draws by itself, so that it depends on its number alone."""
    for number in itertools.count(first):
        with seeded(derive_seed(seed, number)):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
