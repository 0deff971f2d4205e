"""Training data from records, which the user's input functions turn into batches.

A batch is a function of (seed, epoch, shard, number): it can be prepared again, here or on
another worker, with the same result. An input function gets the records of one batch, which are
read directly from their positions. A user's `tf.data` pipeline over records has to start at the
beginning of a shard: the batches that are already committed are computed again and skipped
(`_after_replay`).

Callers: `training_context.py`, `inference.py` and `elastic/inference.py`.
"""

from __future__ import annotations

import collections
import functools
import importlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, Record, RecordNames
from elasticdl.data.data_index import index_of, infer_types
from elasticdl.data.file_ranges import numbering_of
from elasticdl.data.schema import MissingFieldError
from elasticdl.data.sources import open_index, open_source
from elasticdl.data.split_source import whole
from elasticdl.data.unit_reader import UnitReader
from elasticdl.data.units import decoded_bytes
from elasticdl.definition import DatasetInput, Mode, ModelDefinition, RecordInput
from elasticdl.engines import class_numbers
from elasticdl.engines.feed import Resume, TrainingBatch, Validation, chained_digest
from elasticdl.engines.input_calls import by_class, make_batch
from elasticdl.engines.missing_fields import check_label, filled, without_labels
from elasticdl.engines.randomness import Stream, seeded
from elasticdl.engines.shard_sizes import plan_shards
from elasticdl.engines.trained_booleans import with_trained_booleans
from elasticdl.errors import (
    DataError,
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    framework_needed,
    raised_at,
    users_traceback,
)
from elasticdl.sharding.epoch_order import DEFAULT_MINIBATCHES_PER_SHARD, Ints, ShardPlan
from elasticdl.sharding.ledger import ShardLease
from elasticdl.sharding.left_out import records_left_out, records_of
from elasticdl.sharding.permutation import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elasticdl.data.data_index import DataIndex
    from elasticdl.data.record_source import RecordSource
    from elasticdl.job import Job
    from elasticdl.sharding.left_out import BatchId

# Maximum number of records listed in an error message, among which the user looks for the bad one.
_MAX_NAMED = 128
# Size of the records decoded in one call; the batches made from them may be much larger.
_MAX_DECODED_BYTES = 64 * 2**20
# Short, because the loop checks for other work only after each shard of the validation data.
_MINIBATCHES_PER_VALIDATION_SHARD = 8

# Time limit of the search for a record that raises.
_MAX_SEARCH_S = 10.0

MINIBATCHES_AT_ONCE = 32
"""Minibatches that `batches_in_order` reads in one go; a pipeline is rebuilt for each group."""


def open_records(
    definition: ModelDefinition,
    data: str,
    indexes: Mapping[str, DataIndex] | None = None,
    mode: Mode = Mode.TRAINING,
) -> RecordSource:
    """Open records with the model's own reader if it has one, otherwise with a built-in reader.

    Args:
        definition: The model definition, which may have its own reader.
        data: Names of files, folders or patterns, separated by commas.
        indexes: `data` string -> the index of its records (counts and positions), if another
            process has already made one. Data with an index is neither listed nor opened to find
            its records.
        mode: In prediction, a class that is unknown to the model is not an error; the records then
            have no labels.

    Raises:
        DataError: There are no records, or they cannot be read, or they have a class that is
            unknown to the model.
    """
    if definition.open_source is not None:
        source = definition.open_source(data)
    else:
        index = None if indexes is None else indexes.get(data)
        source = open_source(data) if index is None else open_index(index)
    return class_numbers.of_model(source, definition, mode)


def indexes_of(
    definition: ModelDefinition, sources: Mapping[str, RecordSource | None]
) -> dict[str, DataIndex]:
    """Return the indexes of opened data, to be passed to `open_records` in other processes.

    Args:
        definition: The model definition. If it has its own reader, the result is empty, because
            each process then opens the data itself.
        sources: The opened sources, keyed by the string with which each was opened.
    """
    if definition.open_source is not None:
        return {}
    how = definition.input
    schema = how.schema if isinstance(how, RecordInput) else None
    if schema is None:
        for source in sources.values():
            # Once for all processes, so that they cannot disagree.
            infer_types(source)
    found = {data: index_of(source) for data, source in sources.items()}
    return {data: index for data, index in found.items() if index is not None}


@dataclass(frozen=True, eq=False)
class RecordData:
    """Training data from records; see `feed.TrainingData`.

    Attributes:
        definition: The model definition, which turns records into batches.
        source: The records to train on.
        indexes: Indexes of other data, such as validation data, that another process has made; see
            `open_records`.
        held_out: The records of the same files that are not trained on but evaluated on
            (`--validation_split`); None if there are none.
    """

    definition: ModelDefinition
    source: RecordSource
    indexes: Mapping[str, DataIndex] = field(default_factory=dict)
    held_out: RecordSource | None = None

    @property
    def num_records(self) -> int:
        """Number of records in an epoch."""
        return self.source.num_records

    @property
    def files(self) -> Sequence[tuple[str, int]]:
        """URI of each file, and the number of its records, including those held out."""
        return [(file.uri, file.num_records) for file in whole(self.source).files]

    @property
    def resume(self) -> Resume:
        """How training resumes within a shard: at the next batch, or by replaying earlier ones."""
        return "exact" if isinstance(self.definition.input, RecordInput) else "replayed"

    @functools.cached_property
    def reader(self) -> UnitReader:
        """Reader of the training records; it caches units for requests in shuffled order."""
        how = self.definition.input
        if isinstance(how, RecordInput):
            return UnitReader(self.source, how.schema)
        return UnitReader(self.source, None, serialized=True)

    def plan_shards(self, job: Job) -> ShardPlan:
        """Return a plan whose shards fit into the memory of a process that shuffles them.

        Raises:
            DataError: The sample used to estimate the size of records cannot be read.
        """
        splits = isinstance(self.definition.input, RecordInput)
        return plan_shards(self.reader.units, job.training, splits=splits)

    def batches_per_shard(self, plan: ShardPlan) -> int:
        """Return the plan's number of batches per shard; 0 if a pipeline makes the batches."""
        by_record = isinstance(self.definition.input, RecordInput)
        return plan.minibatches_per_shard if by_record else 0

    def minibatch_size(self, plan: ShardPlan) -> int:
        """Return the plan's minibatch size."""
        return plan.minibatch_size

    def shard_batches(
        self,
        plan: ShardPlan,
        epoch: int,
        lease: ShardLease,
        left_out: Sequence[BatchId] = (),
        *,
        one_by_one: Callable[[], bool] = lambda: False,
    ) -> Iterator[TrainingBatch]:
        """Yield the batches of a lease that are not committed yet; see `feed.TrainingData`."""
        return shard_batches(
            self.definition,
            self.reader,
            plan,
            epoch,
            lease,
            left_out=left_out,
            one_by_one=one_by_one,
        )

    def name(self, plan: ShardPlan, batch: BatchId) -> str:
        """Name a batch's records by file and record number, for messages.

        If a pipeline makes the batches, all records of the shard are named.
        """
        numbers = plan.record_numbers(batch.epoch, batch.shard)
        if isinstance(self.definition.input, RecordInput):
            numbers = records_of(plan, batch)
        return self.reader.numbering.name_some(numbers, most=_MAX_NAMED)

    def example(self, plan: ShardPlan) -> Batch:
        """Return the first batch of the first shard that has one.

        Raises:
            DataError: No shard has a batch.
        """
        for shard in range(plan.num_shards):
            if isinstance(self.definition.input, RecordInput):
                # Two records show the shapes and are faster to read than a whole shard. One is not
                # enough: some layers cannot compute statistics of a single example.
                try:
                    return self._first_batch(min(2, self.source.num_records))
                except UserCodeError:
                    if plan.minibatch_size > 1:
                        raise
                # The function may accept only one record, as many as each minibatch has.
                return self._first_batch(1)
            for fed in self.shard_batches(plan, 0, ShardLease(shard)):
                if fed.batch is not None:
                    return fed.batch
        raise DataError(
            f"{self.definition.where('input')}: the data pipeline yields no examples from "
            f"{self.source.num_records} records."
        )

    def _first_batch(self, size: int) -> Batch:
        in_order = batches_in_order(self.definition, self.source, size, Mode.TRAINING, stop=size)
        return next(in_order)[1]

    def _dtypes(self) -> dict[str, np.dtype[Any]]:
        """Return field -> dtype of the first record; empty if a schema decodes the records."""
        how = self.definition.input
        if not isinstance(how, RecordInput) or how.schema is not None:
            return {}
        return {k: v.dtype for k, v in self.source.read_records(0, 1, None)[0].items()}

    def validation(self, data: str, plan: ShardPlan) -> Validation:
        """Open other records for evaluation, or use those that are held out."""
        source, definition = self.held_out, self.definition
        if source is None:
            source = open_records(self.definition, data, self.indexes)
            class_numbers.require_classes(self.definition, source, "--validation_data")
            definition = with_trained_booleans(definition, self._dtypes())
        length = DEFAULT_MINIBATCHES_PER_SHARD
        if isinstance(self.definition.input, RecordInput):
            length = _MINIBATCHES_PER_VALIDATION_SHARD
        in_shards = ShardPlan(source.num_records, plan.minibatch_size, length, shuffle=False)

        def batches(shard: int) -> Iterator[Batch]:
            start, stop = in_shards.span(shard)
            in_order = batches_in_order(
                definition,
                source,
                plan.minibatch_size,
                Mode.EVALUATION,
                start=start,
                stop=stop,
            )
            return (batch for _, batch in in_order)

        def name(shard: int) -> str:
            return _names(source, np.arange(*in_shards.span(shard)))

        return Validation(in_shards.num_shards, batches, name, source)


def shard_batches(
    definition: ModelDefinition,
    reader: UnitReader,
    plan: ShardPlan,
    epoch: int,
    lease: ShardLease,
    *,
    left_out: Sequence[BatchId] = (),
    one_by_one: Callable[[], bool] = lambda: False,
) -> Iterator[TrainingBatch]:
    """Yield the batches of a lease that are not committed yet; see `feed.TrainingData`."""
    if isinstance(definition.input, RecordInput):
        make = functools.partial(make_batch, definition, definition.input)
        gone = records_left_out(plan, left_out, epoch)
        yield from _record_batches(
            make, reader, plan, epoch, lease, gone=gone, one_by_one=one_by_one
        )
        return
    how = _over_records(definition)
    numbers = plan.record_numbers(epoch, lease.shard)
    batches = Stream(derive_seed(plan.seed, epoch, lease.shard, 2)).drawn(
        lambda: _pipeline_batches(
            definition,
            how,
            reader.gather(numbers).serialized(),
            mode=Mode.TRAINING,
            minibatch_size=plan.minibatch_size,
            where=lambda some: reader.numbering.name_some(numbers[some]),
        )
    )
    yield from _after_replay(definition, batches, epoch, lease)


def _record_batches(
    make: Callable[[Sequence[Record], Mode, Callable[[], str]], Batch],
    reader: UnitReader,
    plan: ShardPlan,
    epoch: int,
    lease: ShardLease,
    *,
    gone: Ints,
    one_by_one: Callable[[], bool],
) -> Iterator[TrainingBatch]:
    size, num_batches = plan.minibatch_size, plan.num_batches(lease.shard)
    stop = min(num_batches, lease.stop or num_batches)
    if lease.next_batch >= stop:
        # The second part of a split shard, if that shard is shorter than the others.
        yield TrainingBatch(epoch, lease.shard, lease.next_batch, None, finished=True)
        return
    numbers = plan.record_numbers(epoch, lease.shard)[lease.next_batch * size : stop * size]
    # Skipped records are not even decoded, because decoding may be what kills the process.
    kept = ~np.isin(numbers, gone)
    # Number of kept records before each position.
    before = np.concatenate(([0], np.cumsum(kept)))
    numbers = numbers[kept]
    gathered = reader.gather(numbers)
    # Decoding several batches at once is faster, but a shard may have thousands of them.
    stored_bytes = reader.units.memory_bytes // plan.num_records
    at_once = size * _minibatches_at_once(size * max(stored_bytes, reader.decoded_bytes))
    records: list[Record] = []
    begin = until = 0
    for first in range(0, len(kept), size):
        last = min(first + size, len(kept))
        here = slice(before[first], before[last])
        if first >= until:
            until = min(first + (size if one_by_one() else at_once), len(kept))
            begin = before[first]
            records = gathered.records(begin, before[until]) if begin < before[until] else []
        number = lease.next_batch + first // size
        batch = None
        if here.start < here.stop:
            with seeded(derive_seed(plan.seed, epoch, lease.shard, number, 2)):
                batch = make(
                    records[here.start - begin : here.stop - begin],
                    Mode.TRAINING,
                    RecordNames(reader.numbering.name_some, numbers[here]),
                )
        num_left_out = last - first - int(here.stop - here.start)
        is_last = number + 1 == num_batches
        yield TrainingBatch(epoch, lease.shard, number, batch, is_last, num_left_out=num_left_out)


def _minibatches_at_once(minibatch_bytes: int) -> int:
    """Return how many minibatches to decode together, within a limit of memory.

    Args:
        minibatch_bytes: Size of a decoded minibatch.
    """
    return max(1, min(MINIBATCHES_AT_ONCE, _MAX_DECODED_BYTES // max(minibatch_bytes, 1)))


def batches_in_order(
    definition: ModelDefinition,
    source: RecordSource,
    minibatch_size: int,
    mode: Mode,
    *,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[tuple[int, Batch]]:
    """Yield (number of the first record, batch) in storage order, for evaluation and prediction.

    Args:
        definition: The model definition, which turns records into batches.
        source: The records.
        minibatch_size: Number of records in a batch.
        mode: Evaluation or prediction.
        start: First record; a multiple of `minibatch_size` gives the same batches as a start at 0.
        stop: One past the last record; None means all that follow.

    Raises:
        DataError: In prediction, the number of examples that a pipeline yields differs from the
            number of records, so outputs cannot be matched with records.
        SchemaError: A record lacks a field; in prediction, one that is not the label.
    """
    stop = source.num_records if stop is None else stop
    chunk = minibatch_size * MINIBATCHES_AT_ONCE
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    if isinstance(definition.input, RecordInput):
        minibatch_bytes = minibatch_size * decoded_bytes(source, schema)
        chunk = minibatch_size * _minibatches_at_once(minibatch_bytes)
    missing: list[Any] = []
    if mode is Mode.PREDICTION and schema is not None:
        schema, missing = without_labels(definition, source, schema)
    for first in range(start, stop, chunk):
        last = min(first + chunk, stop)
        numbers = np.arange(first, last)
        if not isinstance(definition.input, RecordInput):
            how = _over_records(definition)
            begin = functools.partial(
                _pipeline_batches,
                definition,
                how,
                source.read_bytes(first, last),
                mode=mode,
                minibatch_size=minibatch_size,
                where=functools.partial(_names_of, source, numbers),
            )
            done = first
            for batch in Stream(derive_seed(0, first, 3)).drawn(begin):
                yield done, batch
                done += batch.num_examples
            if mode is Mode.PREDICTION and done != last:
                raise DataError(
                    f"{_names(source, numbers)}: the pipeline of {definition.origin} yields "
                    f"{done - first} examples of {last - first} records in prediction mode, so "
                    "outputs cannot be matched with records. Do not filter or repeat records in "
                    "prediction mode."
                )
            continue
        try:
            records = source.read_records(first, last, schema)
        except MissingFieldError as error:
            if mode is Mode.EVALUATION and schema is not None:
                check_label(definition, source, schema, error)
            raise
        for at in range(0, len(records), minibatch_size):
            some = [
                {**record, **{field.name: filled(field, 0) for field in missing}}
                if missing
                else record
                for record in records[at : at + minibatch_size]
            ]
            # Seeded per batch, so that random numbers do not depend on the start of a range.
            with seeded(derive_seed(0, first + at, 3), recurs=True):
                where = RecordNames(
                    numbering_of(source).name_some, numbers[at : at + minibatch_size]
                )
                batch = make_batch(definition, definition.input, some, mode, where)
            yield first + at, batch


def _over_records(definition: ModelDefinition) -> DatasetInput:
    """Return the model's input, which must be a `tf.data` pipeline over records.

    Raises:
        DataError: The model reads its data with its own code, so it cannot be used on records.
    """
    if not isinstance(definition.input, DatasetInput):
        raise DataError(
            f"{definition.origin}: this model reads its data with its own code, so it cannot be "
            "used on records. `elasticdl session run` evaluates it on its validation and test data."
        )
    # Imported before seeding, or its first pipeline would be unseeded.
    with framework_needed(f"{definition.origin}: its tf.data pipeline"):
        importlib.import_module("elasticdl.data.tensorflow")
    return definition.input


def _pipeline_batches(
    definition: ModelDefinition,
    how: DatasetInput,
    records: Sequence[bytes],
    *,
    mode: Mode,
    minibatch_size: int,
    where: Callable[[slice], str],
) -> Iterator[Batch]:
    from elasticdl.data import tensorflow  # noqa: PLC0415 - only pipelines need it

    def batches(some: Sequence[bytes]) -> Iterator[Batch]:
        return tensorflow.example_batches(
            some,
            lambda dataset: how.create_dataset(dataset, mode),
            minibatch_size,
            str(definition.where("input")),
        )

    def raises(some: slice) -> bool:
        try:
            collections.deque(batches(records[some]), maxlen=0)
        except Exception:  # noqa: BLE001 - a user's pipeline may raise anything
            return True
        return False

    all_of_them = functools.partial(where, slice(0, len(records)))
    try:
        for batch in batches(records):
            yield by_class(definition, replace(batch, where=all_of_them), mode)
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, definition.where('input'))}: the data pipeline raised on "
            f"{where(_fewest(len(records), raises))}:\n{users_traceback(error)}"
        ) from error


def _fewest(num_records: int, raises: Callable[[slice], bool]) -> slice:
    """Find by bisection a small range of records on which a user's pipeline raises an error.

    The error's traceback does not show them, because a pipeline reads ahead.

    Args:
        num_records: Number of records; the pipeline raises for all of them together.
        raises: Function (slice of the records) -> whether the pipeline raises for these.

    Returns:
        The smallest slice found. The search ends after `_MAX_SEARCH_S`, or if neither half of a
        slice raises on its own.
    """
    first, stop = 0, num_records
    until_s = time.monotonic() + _MAX_SEARCH_S
    while stop - first > 1 and time.monotonic() < until_s:
        middle = (first + stop) // 2
        if raises(slice(first, middle)):
            stop = middle
        elif raises(slice(middle, stop)):
            first = middle
        else:
            break
    return slice(first, stop)


def _after_replay(
    definition: ModelDefinition, batches: Iterator[Batch], epoch: int, lease: ShardLease
) -> Iterator[TrainingBatch]:
    """Skip a shard's committed batches, verify their digest, and yield the following ones.

    Args:
        definition: The model definition, for errors.
        batches: All of the shard's batches; a pipeline yields the committed ones again.
        epoch: Epoch of the shard, from 0.
        lease: The lease of the shard, with the number and the digest of its committed batches.

    Raises:
        DefinitionError: The repeated batches differ from the committed ones.
    """
    digest = 0
    waiting: tuple[int, Batch, int] | None = None
    replayed = lease.next_batch == 0
    for number, batch in enumerate(batches):
        digest = chained_digest(batch, digest)
        if number + 1 == lease.next_batch:
            replayed = digest == lease.digest
            if not replayed:
                break
        if waiting is not None:
            yield TrainingBatch(epoch, lease.shard, waiting[0], waiting[1], False, waiting[2])
        waiting = (number, batch, digest) if number >= lease.next_batch else None
    if not replayed:
        raise DefinitionError(
            f"{definition.where('input')}: the data pipeline does not yield the same batches when "
            f"it is read again: the first {lease.next_batch} of epoch {epoch + 1}, shard "
            f"{lease.shard}, differ from those that were trained on. Draw random numbers from "
            "tf.random, numpy.random or random (they are seeded for you), not from the clock or "
            "the system."
        )
    if waiting is not None:
        yield TrainingBatch(epoch, lease.shard, waiting[0], waiting[1], True, waiting[2])
    else:
        yield TrainingBatch(epoch, lease.shard, lease.next_batch, None, True, digest)


def _names_of(source: RecordSource, numbers: Ints, some: slice) -> str:
    return _names(source, numbers[some])


def _names(source: RecordSource, numbers: Ints) -> str:
    return numbering_of(source).name_some(numbers)
