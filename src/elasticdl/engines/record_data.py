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

from elasticdl.data.batch import Batch, Record, RecordNames, Remake, batch_of, leaves
from elasticdl.data.class_weights import with_class_weights
from elasticdl.data.data_index import index_of, infer_types
from elasticdl.data.file_ranges import numbering_of
from elasticdl.data.schema import STRING, Field, MissingFieldError, Schema
from elasticdl.data.sources import open_index, open_source
from elasticdl.data.split_source import whole
from elasticdl.data.unit_reader import UnitReader
from elasticdl.data.units import decoded_bytes
from elasticdl.data.wording import all_of, counted, did_you_mean, listed, rename_or_add
from elasticdl.definition import DatasetInput, Mode, ModelDefinition, RecordInput
from elasticdl.engines import class_numbers, input_checks
from elasticdl.engines.feed import Resume, TrainingBatch, Validation, chained_digest
from elasticdl.engines.randomness import Stream, seeded
from elasticdl.engines.shard_sizes import plan_shards
from elasticdl.engines.user_calls import calling
from elasticdl.errors import (
    DataError,
    DefinitionError,
    ElasticDLError,
    SchemaError,
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
        mode: In prediction, classes that the model does not know are no error; the records then
            have no labels.

    Raises:
        DataError: There are no records, or they cannot be read, or have classes that the model
            does not know.
    """
    if definition.open_source is not None:
        source = definition.open_source(data)
    else:
        index = None if indexes is None else indexes.get(data)
        source = open_source(data) if index is None else open_index(index)
    return class_numbers.of_model(source, definition.classes, mode)


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
        held_out: The records of the same data to evaluate on; None if there are none.
    """

    definition: ModelDefinition
    source: RecordSource
    indexes: Mapping[str, DataIndex] = field(default_factory=dict)
    held_out: RecordSource | None = None

    @property
    def num_records(self) -> int:
        """Records in an epoch."""
        return self.source.num_records

    @property
    def files(self) -> Sequence[tuple[str, int]]:
        """URI of each file, and the number of its records, including those held out."""
        return [(file.uri, file.num_records) for file in whole(self.source).files]

    @property
    def resume(self) -> Resume:
        """How training resumes within a shard; see `feed.Resume`."""
        return "exact" if isinstance(self.definition.input, RecordInput) else "replayed"

    @functools.cached_property
    def reader(self) -> UnitReader:
        """Reader of the records in shuffled order."""
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
        """Name a batch's records by file and number, for messages.

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

    def validation(self, data: str, plan: ShardPlan) -> Validation:
        """Open other records for evaluation, or use those that are held out."""
        source = self.held_out
        if source is None:
            source = open_records(self.definition, data, self.indexes)
            class_numbers.require_classes(self.definition, source, "--validation_data")
        length = DEFAULT_MINIBATCHES_PER_SHARD
        if isinstance(self.definition.input, RecordInput):
            length = _MINIBATCHES_PER_VALIDATION_SHARD
        in_shards = ShardPlan(source.num_records, plan.minibatch_size, length, shuffle=False)

        def batches(shard: int) -> Iterator[Batch]:
            start, stop = in_shards.span(shard)
            in_order = batches_in_order(
                self.definition,
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
    """Return the number of minibatches of a given size to decode at once."""
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
    """Yield (first record, batch) in storage order, for evaluation and prediction.

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
        schema, missing = _without_labels(definition, source, schema)
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
                _check_label(definition, source, schema, error)
            raise
        for at in range(0, len(records), minibatch_size):
            some = [
                {**record, **{field.name: _filled(field, 0) for field in missing}}
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


def make_batch(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    mode: Mode,
    where: Callable[[], str],
) -> Batch:
    """Run the user's input function on decoded records.

    Args:
        definition: The model definition that the function belongs to.
        how: The input function.
        records: The records of one minibatch.
        mode: Purpose of the batch.
        where: Function () -> names of the records, for an error message.

    Raises:
        UserCodeError: The function raised. The error names the records and contains the user's
            traceback.
        DefinitionError: The function did not return a batch.
    """

    def made(some: Sequence[Record]) -> Batch:
        return _made(definition, how, some, mode, where)

    batch = made(records)
    if mode is Mode.TRAINING:
        location = str(definition.where("input"))
        input_checks.check(location, records, batch, made)
        if input_checks.has_varying_lengths(location, batch):
            again = functools.partial(_made_again, definition, how, where=where)
            batch = replace(batch, remake=Remake(records, again))
    if isinstance(where, RecordNames) and batch.num_examples != len(records):
        where = where.__call__
    return _by_class(definition, replace(batch, where=where), mode)


def _made_again(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    seed: int,
    *,
    where: Callable[[], str],
) -> Batch:
    # Copies, because the function may change the records in place.
    some = input_checks.copies(records)
    with seeded(derive_seed(seed, 5), recurs=True):
        return _by_class(
            definition, _made(definition, how, some, Mode.TRAINING, where), Mode.TRAINING
        )


def _made(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    mode: Mode,
    where: Callable[[], str],
) -> Batch:
    try:
        with calling(definition.where("input"), where):
            made = _call(how, records, mode)
    except SchemaError as error:
        # From a prebuilt model, which knows the value but not its record.
        raise SchemaError(f"{_refused(how, records, mode, where)}: {error}") from error
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, definition.where('input'))}: the input function raised on "
            f"{where()}:\n{users_traceback(error)}{_missing_key(error, how, records, mode)}"
        ) from error
    parts = made if isinstance(made, tuple) else (made,)
    if mode is Mode.PREDICTION and len(parts) > 1 and _are_of_no_record(parts[1]):
        # The function skipped records without labels: [... for r in records if "label" in r].
        parts = parts[:1]
    _check_none_empty(definition, how, records, parts, mode)
    batch = batch_of(
        parts, f"{definition.where('input')}: the input function made, from {len(records)} records,"
    )
    if batch.labels is None and mode is not Mode.PREDICTION:
        raise DefinitionError(
            f"{definition.where('input')}: the input function returned no labels in {mode.value}; "
            "expected (features, labels) or (features, labels, sample weights)."
        )
    return batch


def _call(how: RecordInput, records: Sequence[Record], mode: Mode) -> Any:
    return how.input_fn(records, mode) if how.takes_mode else how.input_fn(records)


def _refused(
    how: RecordInput, records: Sequence[Record], mode: Mode, where: Callable[[], str]
) -> str:
    """Find the record because of which an input function raised `SchemaError` for a batch.

    The function is called again, with one record at a time.

    Args:
        how: The input function.
        records: The records of the batch.
        mode: Purpose of the batch.
        where: Function () -> names of all the records.

    Returns:
        The name of the first record that raises the error alone. The names of all records if none
        does, or if `where` cannot name single records.
    """
    if isinstance(where, RecordNames):
        for number, record in enumerate(records):
            try:
                _call(how, [record], mode)
            except SchemaError:
                return where.of_examples([number])
    return where()


def _missing_key(error: Exception, how: RecordInput, records: Sequence[Record], mode: Mode) -> str:
    """Return advice if an input function read a field that its records do not have; else ""."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(key, str) or not records or key in records[0]:
        return ""
    if how.schema is not None and key in how.schema.names:
        # Only in prediction, where a record may lack its label.
        return (
            f"\n  data_schema() has {key!r}, but the data does not. Add it to the data; if it is "
            f"the label, read it only from records that have it: if {key!r} in record."
        )
    have = f"\n  The records have {listed(records[0])}{did_you_mean(key, records[0])}"
    if mode is Mode.PREDICTION:
        have = (
            f"\n  If {key!r} is the label: data to predict need none. Read it only where it is: "
            f'[... for record in records if "{key}" in record].{have}'
        )
    if how.schema is None:
        return have
    return f"{have} Only fields in data_schema() are read: add {key!r} there if the data has it."


def _check_none_empty(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    parts: Sequence[Any],
    mode: Mode,
) -> None:
    """Check that the labels and sample weights that an input function made are not empty.

    Args:
        definition: The model definition that the function belongs to.
        how: The input function.
        records: The records that it got.
        parts: Features, labels and sample weights that it returned.
        mode: Purpose of the batch.

    Raises:
        DefinitionError: One of them is empty, though there are records.
    """
    for name, part in zip(("labels", "sample weights"), parts[1:], strict=False):
        if part is None or not leaves(part) or not _are_of_no_record(part):
            continue
        of_evaluation = mode is Mode.EVALUATION and name == "labels"
        in_schema = "" if how.schema is None else " Only fields in data_schema() are read."
        raise DefinitionError(
            f"{definition.where('input')}: the {name} that the input function made from "
            f"{counted(len(records), 'record')} are empty. Does it look for a field that the "
            f"records do not have? They have {listed(records[0])}.{in_schema}"
            + " An evaluation needs labels; use predict for data without them."
            * of_evaluation
        )


def _are_of_no_record(labels: Any) -> bool:
    try:
        return all(np.shape(each)[:1] == (0,) for each in leaves(labels))
    except ValueError:
        # A sequence of no one shape, which `batch_of` refuses.
        return False


def _by_class(definition: ModelDefinition, batch: Batch, mode: Mode) -> Batch:
    """Return a training batch with the user's class weights applied to its sample weights.

    Without class weights, and in other modes, the batch is returned unchanged.
    """
    if mode is not Mode.TRAINING or definition.class_weight is None:
        return batch
    weights = definition.class_weight()
    return batch if weights is None else with_class_weights(batch, weights, str(definition.origin))


def _over_records(definition: ModelDefinition) -> DatasetInput:
    """Return the model's input as a pipeline that takes records.

    Raises:
        DataError: The model's input does not read records.
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
            yield _by_class(definition, replace(batch, where=all_of_them), mode)
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, definition.where('input'))}: the data pipeline raised on "
            f"{where(_fewest(len(records), raises))}:\n{users_traceback(error)}"
        ) from error


def _fewest(num_records: int, raises: Callable[[slice], bool]) -> slice:
    """Narrow down, by bisection, which records make a function raise.

    The traceback does not tell, because a pipeline reads ahead.

    Args:
        num_records: Number of records; the function raises for all of them.
        raises: Function (slice) -> whether the function raises for these records.

    Returns:
        The smallest slice found for which it raises. The search ends after `_MAX_SEARCH_S`, or if
        neither half of a slice raises alone.
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
            f"it is read again: the first {lease.next_batch} of shard {lease.shard} differ from "
            "those that were trained on. Draw random numbers from tf.random, numpy.random or "
            "random (they are seeded for you), not from the clock or the system."
        )
    if waiting is not None:
        yield TrainingBatch(epoch, lease.shard, waiting[0], waiting[1], True, waiting[2])
    else:
        yield TrainingBatch(epoch, lease.shard, lease.next_batch, None, True, digest)


def _without_labels(
    definition: ModelDefinition, source: RecordSource, schema: Schema
) -> tuple[Schema, list[Any]]:
    """Remove fields that the records lack, such as labels in prediction, from a schema.

    Only the user's input function knows which fields are labels. So the function is tried on one
    record, in which the missing fields are filled with different values: its features must be the
    same for all of them. A function that raises for such values, as `classes.index(label)` does,
    must accept a record without the fields.

    Returns:
        The reduced schema, and the missing fields that must be filled with a placeholder in each
        record. The latter is empty if the function accepts records without the fields.

    Raises:
        DataError: The features depend on a missing field, or the records have no field of the
            schema.
        UserCodeError: The function accepts neither these values nor records without the fields.
    """
    missing = [field for field in schema.fields if _is_missing(source, field)]
    if not missing:
        return schema, []
    present = [field for field in schema.fields if field not in missing]
    reduced = Schema(tuple(present))
    how = definition.input
    assert isinstance(how, RecordInput)  # noqa: S101 - only these have a schema
    where = functools.partial(_names, source, np.arange(1))

    record = dict(source.read_records(0, 1, reduced)[0]) if present else {}

    def features_of(some: Record) -> list[Any]:
        with seeded(0):
            return leaves(make_batch(definition, how, [some], Mode.PREDICTION, where).features)

    def features_with(value: int | None) -> list[Any]:
        return features_of(record | {field.name: _filled(field, value) for field in missing})

    try:
        first = features_with(0)
    except UserCodeError:
        # Raises where the function needs the fields, with the user's own line.
        try:
            features_of(dict(record))
        except UserCodeError as error:
            if present:
                raise
            raise _no_field(definition, schema, where(), _present(source, missing[0])) from error
        return reduced, []

    def moves_features(field: Field) -> bool:
        others = record | {each.name: _filled(each, 0) for each in missing}
        changed = (features_of(others | {field.name: _filled(field, v)}) for v in (1, None))
        return not all(all(map(np.array_equal, first, each)) for each in changed)

    for value in (1, None):
        if not all(map(np.array_equal, first, features_with(value))):
            # Name only the fields that the features depend on, not a missing label.
            needed = [field for field in missing if moves_features(field)]
            names = [field.name for field in needed]
            have = sorted(_present(source, needed[0]) or (field.name for field in present))
            declared = needed[0].is_declared
            # The files of prebuilt models are right, and not the user's to change.
            who = (
                f"{definition.origin} needs for the model's"
                if declared
                else "the model needs for its"
            )
            raise DataError(
                f"{where()}: the records have no {all_of(map(repr, names))}, which {who} inputs. "
                f"They have {listed(have) or 'none of its fields'}"
                f"{_advice(names, have, schema, declared=declared)}"
            )
    return reduced, missing


def _no_field(
    definition: ModelDefinition, schema: Schema, where: str, have: Sequence[str] | None
) -> DataError:
    return DataError(
        f"{where}: the records have no field of data_schema() in {definition.origin}: "
        f"{listed(schema.names)}. They have {listed(have or ()) or 'no fields'}. Give the data by "
        "these names, such as a DataFrame with these columns."
    )


def _advice(missing: Sequence[str], have: Sequence[str], schema: Schema, *, declared: bool) -> str:
    """Return the end of a sentence on what to do about missing fields.

    Args:
        missing: Names of the fields.
        have: Names of the fields of the records.
        schema: All fields of the model.
        declared: Whether the user wrote the schema.
    """
    if declared:
        others = [name for name in have if name not in schema.names]
        return did_you_mean(missing[0], others) if len(missing) == 1 else "."
    return f". {rename_or_add(missing, have, schema.names)}."


def _check_label(
    definition: ModelDefinition, source: RecordSource, schema: Schema, error: MissingFieldError
) -> None:
    """Raise a clearer error than `error` if the field that the records lack is the label.

    Returns if this cannot be determined; the caller then raises `error` itself.

    Args:
        definition: The model definition.
        source: The records to evaluate on.
        schema: The schema that the records do not match.
        error: The error about the missing field.

    Raises:
        MissingFieldError: The missing field is the label, which an evaluation needs.
        DataError: The model's inputs depend on the missing field.
    """
    try:
        _, missing = _without_labels(definition, source, schema)
    except UserCodeError:
        return
    if missing:
        names = all_of(repr(field.name) for field in missing)
        raise MissingFieldError(
            f"{_names(source, np.arange(1))}: the records have no {names}, the label of the "
            "model. An evaluation compares predictions with it. Add it to "
            "the data, or use predict for data without it."
        ) from error


def _is_missing(source: RecordSource, field: Field) -> bool:
    """Return whether the records lack a field.

    The reader decides, because tables store a field with several values in several columns, and
    columns that are not in the schema need not be readable.
    """
    return _present(source, field) is not None


def _present(source: RecordSource, field: Field) -> Sequence[str] | None:
    """Return the names of the records' fields, for an error, or None if they have `field`."""
    try:
        source.read_records(0, 1, Schema((field,)))
    except MissingFieldError as error:
        return error.present
    except SchemaError:
        # The field exists; its problem is reported where it is read.
        return None
    return None


def _filled(field: Field, value: int | None) -> np.ndarray[Any, Any]:
    """Return a placeholder for a missing field: `value` in the field's type, or its null value.

    If `value` is None, a field that is not nullable gets 0.
    """
    if value is None and field.nullable:
        return field.missing(1)[0, ...]
    shape = (1,) if field.varies else field.shape
    number = value or 0
    return np.full(shape, b"%d" % number if field.dtype == STRING else number, field.dtype)


def _names_of(source: RecordSource, numbers: Ints, some: slice) -> str:
    return _names(source, numbers[some])


def _names(source: RecordSource, numbers: Ints) -> str:
    return numbering_of(source).name_some(numbers)
