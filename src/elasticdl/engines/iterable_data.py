"""Training data from a user's pipeline that yields batches.

In this module, the shard plan's records are the batches of an epoch, in the order in which the
pipeline yields them. The pipeline is rebuilt for each epoch with random numbers that are a function
of (seed, epoch), so an epoch has the same batches each time it is read. An indexed pipeline can
start at any batch. Any other is read again from the start, and a CRC chained over all of the
epoch's batches verifies that they are the ones that were trained on.

Callers: `training_context.py`.
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
from elasticdl.engines.feed import Resume, TrainingBatch, Validation, chained_digest
from elasticdl.engines.randomness import Stream, forget_kernels, seeded
from elasticdl.engines.stored_data import is_stored, not_for_own_code
from elasticdl.errors import DataError, DefinitionError
from elasticdl.sharding.epoch_order import ShardPlan
from elasticdl.sharding.permutation import derive_seed

if TYPE_CHECKING:
    from elasticdl.job import Job
    from elasticdl.sharding.ledger import ShardLease
    from elasticdl.sharding.left_out import BatchId

_log = logging.getLogger("elasticdl")
# With several workers: the number of consecutive batches assigned to one worker.
_BATCHES_PER_SHARD = 8
_BATCHES_PER_VALIDATION_SHARD = 32
# Recent batches are kept up to this size. A feed that replaces another one can go back to batches
# that the other had prefetched, without restarting the pipeline.
_MAX_BYTES_BEHIND = 64 * 2**20
_ESTIMATE_AFTER_S = 2.0
# Seeds of the epochs that this process has started.
_begun: set[int] = set()


class _Made(NamedTuple):
    """A batch of an epoch, with its position and digest.

    Attributes:
        number: Number of the batch in the epoch, from 0.
        batch: The batch.
        digest: Hash of all of the epoch's batches up to this one; 0 if batches are read by index,
            because a resumed run then does not read the earlier ones again.
    """

    number: int
    batch: Batch
    digest: int


@dataclass(eq=False)
class PipelineReader:
    """Reader of a user's pipeline: reads on from batch to batch, or restarts for an earlier batch.

    Attributes:
        epochs: The opened pipeline, which can be read from the start for any epoch.
        seed: Seed of its random numbers.
        log: Called with a message for the user if reading up to a requested batch takes long.
    """

    epochs: Epochs
    seed: int
    log: Callable[[str], None] = _log.info
    _epoch: int = field(default=-1, init=False)
    _next: int = field(default=0, init=False)
    _digest: int = field(default=0, init=False)
    _batches: Iterator[Batch] = field(default_factory=lambda: iter(()), init=False)
    _behind: collections.deque[_Made] = field(default_factory=collections.deque, init=False)
    _bytes_behind: int = field(default=0, init=False)

    def batches(self, epoch: int, start: int, stop: int) -> Iterator[_Made]:
        """Yield the batches `start` to `stop` (exclusive) of an epoch.

        Raises:
            DefinitionError: The pipeline ends before `stop`.
        """
        for number in range(start, stop):
            kept = self._kept(epoch, number)
            if kept is None:
                self._go_to(epoch, number)
                kept = self._make()
            yield kept

    def digest_before(self, epoch: int, number: int) -> int:
        """Return the CRC of all batches of an epoch before batch `number`.

        A caller compares it with the CRC in the ledger, to verify that the pipeline yields the
        batches again that were trained on. To compute it, the pipeline is read up to that batch,
        unless this has been done already. It is 0 if `number` is 0 or the pipeline is indexed.
        """
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
        started, is_reported, first = time.monotonic(), False, self._next
        while self._next < number:
            self._make()
            spent = time.monotonic() - started
            if not is_reported and spent > _ESTIMATE_AFTER_S:
                is_reported = True
                left = (number - self._next) * spent / (self._next - first)
                self.log(
                    f"Reading the first {number:,} batches of epoch {epoch + 1} again to resume "
                    f"after them: {left:.0f} s left."
                )

    def _begin(self, epoch: int, number: int) -> None:
        # Unset until the epoch has started: if starting fails, a retry must not get batches of the
        # previous epoch.
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
                f"{self.epochs.name} ended after {self._next} batches of an epoch; expected "
                f"{self.epochs.num_batches}, the length it reported. Correct the number, or repeat "
                "the data."
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


# Framework -> data whose batches workers can share.
_SHARED = {
    "keras": "a tf.data.Dataset or a keras.utils.PyDataset",
    "torch": "a map-style Dataset (with __getitem__ and __len__) instead of an IterableDataset",
}


class IterableData:
    """Training data from a user's pipeline of batches; see `feed.TrainingData`.

    Raises:
        DataError: An epoch has no batch.
        DefinitionError: The job has workers, but the pipeline can only be read in order, so each
            worker would read different batches.
    """

    def __init__(self, definition: ModelDefinition, job: Job) -> None:
        assert isinstance(definition.input, BatchesInput)  # noqa: S101 - the caller has checked
        self._input = definition.input
        # Loaders may draw random numbers, and shuffle, when their data is opened.
        with seeded(job.training.seed):
            self.epochs = _opened(self._input, job.data, Mode.TRAINING)
        if self.epochs.num_batches < 1:
            raise DataError(f"{self.epochs.name}: an epoch has no batches.")
        if job.workers is not None and not self.epochs.reproducible:
            raise DefinitionError(
                f"{self.epochs.name} yields batches that can only be read in order, so each worker "
                "would get its own, different batches. Train in one process (without "
                f"--num_workers), or use {_SHARED[definition.framework]}."
            )
        self._data = job.data
        self.reading = PipelineReader(self.epochs, job.training.seed)

    @property
    def num_records(self) -> int:
        """Number of examples in an epoch."""
        return self.epochs.num_examples

    @property
    def files(self) -> Sequence[tuple[str, int]]:
        """Return the single location of the data with the number of batches in an epoch."""
        return [(self._data, self.epochs.num_batches)]

    @property
    def resume(self) -> Resume:
        """How training resumes within an epoch: at the next batch, or by replaying earlier ones."""
        return "exact" if self.epochs.indexed else "replayed"

    def plan_shards(self, job: Job) -> ShardPlan:
        """Return a plan with one shard per epoch, or many short shards if the job has workers."""
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
        """Return the plan's number of batches per shard."""
        return plan.minibatches_per_shard

    def minibatch_size(self, plan: ShardPlan) -> int:
        """Return the number of examples in the first batch; the pipeline determines the size."""
        return self.example(plan).num_examples

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

        Raises:
            DefinitionError: The pipeline does not yield the same batches again.
        """
        del left_out, one_by_one
        start, end = plan.span(lease.shard)
        first = start + lease.next_batch
        stop = min(end, start + lease.stop) if lease.stop else end
        if first >= stop:
            # The second part of a split shard, if that shard is shorter than the others.
            yield TrainingBatch(epoch, lease.shard, lease.next_batch, None, finished=True)
            return
        # The second part of a split shard has no digest before its first commit.
        if lease.digest and self.reading.digest_before(epoch, first) != lease.digest:
            raise DefinitionError(
                f"{self.epochs.name} does not yield the same batches when it is read again: the "
                f"first {first} of epoch {epoch + 1} differ from those that were trained on. Draw "
                "random numbers from tf.random, numpy.random or random (they are seeded for you), "
                "not from the clock or the system, and sort the files explicitly."
            )
        for made in self.reading.batches(epoch, first, stop):
            number = made.number - start
            last = made.number + 1 == end
            yield TrainingBatch(epoch, lease.shard, number, made.batch, last, made.digest)

    def check(self, epoch: int) -> None:
        """Check, when an epoch begins, that callbacks have not changed the pipeline.

        See `definition.Epochs`.

        Raises:
            DefinitionError: A callback has changed the pipeline.
        """
        if self.epochs.check is None:
            return
        # User code called here may draw random numbers while another thread prepares batches.
        with seeded(derive_seed(self.reading.seed, epoch, 2)):
            self.epochs.check(epoch)

    def name(self, plan: ShardPlan, batch: BatchId) -> str:
        """Return an empty string: the records of a batch are known only to the user's pipeline.

        See `TrainingData.name`.
        """
        del plan, batch
        return ""

    def example(self, plan: ShardPlan) -> Batch:
        """Return the first batch. Reading it does not advance the training pipeline."""
        del plan
        return self._first

    @functools.cached_property
    def _first(self) -> Batch:
        with self.epochs.preserved():
            return next(PipelineReader(self.epochs, self.reading.seed).batches(0, 0, 1)).batch

    def validation(self, data: str, plan: ShardPlan) -> Validation:
        """Open the user's validation pipeline.

        Raises:
            DataError: The pipeline has no batch.
        """
        validation, _ = open_once(self._input, data, plan.seed, Mode.EVALUATION)
        return validation


def open_once(
    pipeline: BatchesInput, data: str, seed: int, mode: Mode
) -> tuple[Validation, Epochs]:
    """Open a pipeline that yields batches, for a single pass over them.

    Args:
        pipeline: The model's input.
        data: Location of the data.
        seed: Seed of the training job, so that evaluations draw the same random numbers.
        mode: Evaluation or prediction.

    Returns:
        The batches in shards, and the opened pipeline, whose `num_batches` is their number.

    Raises:
        DataError: The pipeline has no batch.
    """
    with seeded(seed):
        epochs = _opened(pipeline, data, mode)
    if epochs.num_batches < 1:
        purpose = "evaluate on" if mode is Mode.EVALUATION else "predict for"
        raise DataError(f"{epochs.name}: there are no batches to {purpose}.")
    cut = ShardPlan(epochs.num_batches, 1, _BATCHES_PER_VALIDATION_SHARD, shuffle=False)
    # A separate seed: otherwise it would draw the same numbers as the first training epoch.
    reading = PipelineReader(epochs, derive_seed(seed, 0, 3))

    def batches(shard: int) -> Iterator[Batch]:
        start, stop = cut.span(shard)
        return (made.batch for made in reading.batches(0, start, stop))

    return Validation(cut.num_shards, batches), epochs


def _opened(pipeline: BatchesInput, data: str, mode: Mode) -> Epochs:
    if is_stored(data):
        raise not_for_own_code()
    return pipeline.open_epochs(data, mode)


def _named(name: str, epoch: int, number: int) -> str:
    return f"batch {number} of epoch {epoch + 1} of {name}"


def _each_seeded(batches: Iterator[Batch], seed: int, first: int) -> Iterator[Batch]:
    """Yield batches; seed the random number generators before each one.

    The random numbers in a batch then depend only on `seed` and the batch's number.

    Args:
        batches: The pipeline's batches.
        seed: Seed of all batches.
        first: Number of the first batch.
    """
    for number in itertools.count(first):
        with seeded(derive_seed(seed, number)):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
