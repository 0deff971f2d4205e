"""Training on records: batches that input functions of the user's make of them.

A batch is a function of (seed, epoch, shard, number): it can be made again, here or on
another worker, and is the same. Records are found by seeking; a `tf.data` pipeline of the
user's over records is built again and its committed batches skipped (`_after_replay`).

Callers: `material.py`, `trained.py` and `elastic/tasks.py`.
"""

from __future__ import annotations

import collections
import functools
import importlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, Record, batch_of, leaves
from elasticdl.data.class_weights import with_class_weights
from elasticdl.data.data_index import index_of, infer_types
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.schema import STRING, Field, MissingFieldError, Schema
from elasticdl.data.sources import open_index, open_source
from elasticdl.data.unit_reader import UnitReader
from elasticdl.definition import DatasetInput, Mode, ModelDefinition, RecordInput
from elasticdl.engines import input_alone
from elasticdl.engines.cut import cut
from elasticdl.engines.feed import FedBatch, Resume, chained_digest
from elasticdl.engines.randomness import Stream, seeded
from elasticdl.engines.seams import Validation
from elasticdl.engines.user_calls import calling
from elasticdl.errors import (
    DataError,
    DefinitionError,
    ElasticDLError,
    SchemaError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.sharding.ledger import Piece
from elasticdl.sharding.left_out import records_left_out, records_of
from elasticdl.sharding.permutation import derive_seed
from elasticdl.sharding.shard import DEFAULT_MINIBATCHES_PER_SHARD, Ints, ShardPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elasticdl.data.data_index import DataIndex
    from elasticdl.data.record_source import RecordSource
    from elasticdl.job import Job
    from elasticdl.sharding.left_out import BatchId

# A person looks for one of them.
_MOST_NAMED = 128
# As they are stored: what is made of them may be much larger.
_MAX_DECODED_BYTES = 64 * 2**20
# A shard of validation data is evaluated between two looks at what else there is to do.
_MINIBATCHES_PER_VALIDATION_SHARD = 8

# A record that raises is looked for so long.
_MAX_SEARCH_S = 10.0

MINIBATCHES_AT_ONCE = 32
"""So many `batches_in_order` reads at once; a pipeline of the user's is built anew for each."""


def open_records(
    definition: ModelDefinition, data: str, indexes: Mapping[str, DataIndex] | None = None
) -> RecordSource:
    """Open records with the model's own reader if it has one, else with ours.

    Args:
        definition: What has a reader of its own, perhaps.
        data: Names of files, folders or patterns.
        indexes: What is known of data, by these names: nothing is listed or looked into there.

    Raises:
        DataError: There are none, or they cannot be read.
    """
    if definition.open_source is not None:
        return definition.open_source(data)
    index = None if indexes is None else indexes.get(data)
    return open_source(data) if index is None else open_index(index)


def indexes_of(
    definition: ModelDefinition, sources: Mapping[str, RecordSource | None]
) -> dict[str, DataIndex]:
    """Return what was found when data were opened, for `open_records` in other processes.

    Args:
        definition: A model with a reader of its own opens its data in each process.
        sources: What was opened, by the names it was opened by.
    """
    if definition.open_source is not None:
        return {}
    how = definition.input
    schema = how.schema if isinstance(how, RecordInput) else None
    if schema is None:
        for source in sources.values():
            # Once for all processes, which then cannot disagree.
            infer_types(source)
    found = {data: index_of(source) for data, source in sources.items()}
    return {data: index for data, index in found.items() if index is not None}


@dataclass(frozen=True, eq=False)
class RecordData:
    """Records as training data; see `feed.TrainingData`.

    Attributes:
        definition: How records become batches.
        source: The records.
        indexes: What is known of other data, by their names; see `open_records`.
    """

    definition: ModelDefinition
    source: RecordSource
    indexes: Mapping[str, DataIndex] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """Records in an epoch."""
        return self.source.num_records

    @property
    def files(self) -> Sequence[tuple[str, int]]:
        """URI of each file, and the number of its records."""
        return [(file.uri, file.num_records) for file in self.source.files]

    @property
    def resume(self) -> Resume:
        """How a shard is entered."""
        return "exact" if isinstance(self.definition.input, RecordInput) else "replayed"

    @functools.cached_property
    def reader(self) -> UnitReader:
        """What reads the records in a shuffled order."""
        how = self.definition.input
        if isinstance(how, RecordInput):
            return UnitReader(self.source, how.schema)
        return UnitReader(self.source, None, serialized=True)

    def cut(self, job: Job) -> ShardPlan:
        """Return shards of so many records as a process can well hold and mix.

        Raises:
            DataError: The sample that their size is judged by cannot be read.
        """
        splits = isinstance(self.definition.input, RecordInput)
        return cut(self.reader.units, job.training, splits=splits)

    def batches_per_shard(self, plan: ShardPlan) -> int:
        """Return the plan's number; a pipeline may filter and repeat."""
        by_record = isinstance(self.definition.input, RecordInput)
        return plan.minibatches_per_shard if by_record else 0

    def minibatch_size(self, plan: ShardPlan) -> int:
        """Return the plan's."""
        return plan.minibatch_size

    def shard_batches(
        self,
        plan: ShardPlan,
        epoch: int,
        piece: Piece,
        left_out: Sequence[BatchId] = (),
        *,
        singly: Callable[[], bool] = lambda: False,
    ) -> Iterator[FedBatch]:
        """Yield the batches of a piece that are not committed yet; see `feed.TrainingData`."""
        return shard_batches(
            self.definition, self.reader, plan, epoch, piece, left_out=left_out, singly=singly
        )

    def name(self, plan: ShardPlan, batch: BatchId) -> str:
        """Return the files and numbers of a batch's records; a pipeline's may be of the shard."""
        numbers = plan.record_numbers(batch.epoch, batch.shard)
        if isinstance(self.definition.input, RecordInput):
            numbers = records_of(plan, batch)
        return self.reader.numbering.name_some(numbers, most=_MOST_NAMED)

    def example(self, plan: ShardPlan) -> Batch:
        """Return the first batch of the first shard that has one.

        Raises:
            DataError: No shard has a batch.
        """
        for shard in range(plan.num_shards):
            if isinstance(self.definition.input, RecordInput):
                # Two records are enough to know the shapes, and quicker than a whole shard; of
                # one alone some layers can take no statistics.
                few = min(2, self.source.num_records)
                in_order = batches_in_order(
                    self.definition, self.source, few, Mode.TRAINING, stop=few
                )
                return next(in_order)[1]
            for fed in self.shard_batches(plan, 0, Piece(shard)):
                if fed.batch is not None:
                    return fed.batch
        raise DataError(
            f"{self.definition.where('input')}: the data pipeline yields no example from "
            f"{self.source.num_records} records."
        )

    def validation(self, data: str, plan: ShardPlan) -> Validation:
        """Open other records, to evaluate on."""
        source = open_records(self.definition, data, self.indexes)
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
    piece: Piece,
    *,
    left_out: Sequence[BatchId] = (),
    singly: Callable[[], bool] = lambda: False,
) -> Iterator[FedBatch]:
    """Yield the batches of a piece that are not committed yet; see `feed.TrainingData`."""
    if isinstance(definition.input, RecordInput):
        make = functools.partial(make_batch, definition, definition.input)
        gone = records_left_out(plan, left_out, epoch)
        yield from _record_batches(make, reader, plan, epoch, piece, gone=gone, singly=singly)
        return
    how = _over_records(definition)
    numbers = plan.record_numbers(epoch, piece.shard)
    batches = Stream(derive_seed(plan.seed, epoch, piece.shard, 2)).drawn(
        lambda: _pipeline_batches(
            definition,
            how,
            reader.gather(numbers).serialized(),
            mode=Mode.TRAINING,
            minibatch_size=plan.minibatch_size,
            where=lambda some: reader.numbering.name_some(numbers[some]),
        )
    )
    yield from _after_replay(definition, batches, epoch, piece)


def _record_batches(
    make: Callable[[Sequence[Record], Mode, Callable[[], str]], Batch],
    reader: UnitReader,
    plan: ShardPlan,
    epoch: int,
    piece: Piece,
    *,
    gone: Ints,
    singly: Callable[[], bool],
) -> Iterator[FedBatch]:
    size, num_batches = plan.minibatch_size, plan.num_batches(piece.shard)
    stop = min(num_batches, piece.stop or num_batches)
    if piece.committed >= stop:
        # The rear part of a shard that is shorter than others.
        yield FedBatch(epoch, piece.shard, piece.committed, None, finished=True)
        return
    numbers = plan.record_numbers(epoch, piece.shard)[piece.committed * size : stop * size]
    # What is left out is not even decoded: that may be what kills.
    kept = ~np.isin(numbers, gone)
    # How many of the records before each place are there.
    before = np.concatenate(([0], np.cumsum(kept)))
    numbers = numbers[kept]
    gathered = reader.gather(numbers)
    # Decoding some batches at once is quicker, but a shard may have thousands.
    minibatch_bytes = size * reader.units.memory_bytes // plan.num_records + 1
    at_once = size * max(1, min(MINIBATCHES_AT_ONCE, _MAX_DECODED_BYTES // minibatch_bytes))
    records: list[Record] = []
    begin = until = 0
    for first in range(0, len(kept), size):
        last = min(first + size, len(kept))
        here = slice(before[first], before[last])
        if first >= until:
            until = min(first + (size if singly() else at_once), len(kept))
            begin = before[first]
            records = gathered.records(begin, before[until]) if begin < before[until] else []
        number = piece.committed + first // size
        batch = None
        if here.start < here.stop:
            with seeded(derive_seed(plan.seed, epoch, piece.shard, number, 2)):
                batch = make(
                    records[here.start - begin : here.stop - begin],
                    Mode.TRAINING,
                    functools.partial(reader.numbering.name_some, numbers[here]),
                )
        num_left_out = last - first - int(here.stop - here.start)
        is_last = number + 1 == num_batches
        yield FedBatch(epoch, piece.shard, number, batch, is_last, num_left_out=num_left_out)


def batches_in_order(
    definition: ModelDefinition,
    source: RecordSource,
    minibatch_size: int,
    mode: Mode,
    *,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[tuple[int, Batch]]:
    """Yield (first record, batch) in the order records are stored: evaluation, prediction.

    Raises:
        DataError: In prediction, a pipeline yields another number of examples than there are
            records, so that outputs cannot be told apart.
    """
    stop = source.num_records if stop is None else stop
    chunk = minibatch_size * MINIBATCHES_AT_ONCE
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
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
                    "outputs cannot be matched with records. Do not filter or repeat there."
                )
            continue
        records = source.read_records(first, last, schema)
        for at in range(0, len(records), minibatch_size):
            some = [
                {**record, **{field.name: _filled(field, 0) for field in missing}}
                if missing
                else record
                for record in records[at : at + minibatch_size]
            ]
            # For each, so that what is drawn does not depend on where a range of records begins.
            with seeded(derive_seed(0, first + at, 3)):
                where = functools.partial(_names, source, numbers[at : at + minibatch_size])
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
        definition: Whose function it is.
        how: The function.
        records: Those of one minibatch.
        mode: What the batch is for.
        where: Names the records, for an error.

    Raises:
        UserCodeError: It raised; names the records and holds the user's traceback.
        DefinitionError: What it returned is not a batch.
    """

    def made(some: Sequence[Record]) -> Batch:
        return _made(definition, how, some, mode, where)

    batch = made(records)
    if mode is Mode.TRAINING:
        input_alone.look(str(definition.where("input")), records, batch, made)
    return _by_class(definition, replace(batch, where=where), mode)


def _made(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    mode: Mode,
    where: Callable[[], str],
) -> Batch:
    try:
        with calling(definition.where("input"), where):
            made = how.input_fn(records, mode) if how.takes_mode else how.input_fn(records)
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, definition.where('input'))}: the input function raised on "
            f"{where()}:\n{users_traceback(error)}"
        ) from error
    parts = made if isinstance(made, tuple) else (made,)
    batch = batch_of(
        parts, f"{definition.where('input')}: the input function made, from {len(records)} records,"
    )
    if batch.labels is None and mode is not Mode.PREDICTION:
        raise DefinitionError(
            f"{definition.where('input')}: the input function returned no labels in {mode.value}; "
            "expected (features, labels) or (features, labels, sample weights)."
        )
    return batch


def _by_class(definition: ModelDefinition, batch: Batch, mode: Mode) -> Batch:
    """Return the batch with its examples counted by the user's class weights, in training."""
    if mode is not Mode.TRAINING or definition.class_weight is None:
        return batch
    weights = definition.class_weight()
    return batch if weights is None else with_class_weights(batch, weights, str(definition.origin))


def _over_records(definition: ModelDefinition) -> DatasetInput:
    """Return how a pipeline over records is made.

    Raises:
        DataError: The model's input does not read records.
    """
    if not isinstance(definition.input, DatasetInput):
        raise DataError(
            f"{definition.origin}: this model's own code reads its data, so it cannot be used on "
            "records. `elasticdl session run` evaluates it on its validation and test data."
        )
    # Imported before seeding, or its first pipeline would be unseeded.
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
    """Return the fewest neighbouring records that raise by themselves, found by halving.

    A pipeline reads ahead, so nothing else knows which record was being read.
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
    definition: ModelDefinition, batches: Iterator[Batch], epoch: int, piece: Piece
) -> Iterator[FedBatch]:
    """Skip the committed batches of a pipeline, proving that they are the same; yield the rest."""
    digest = 0
    waiting: tuple[int, Batch, int] | None = None
    replayed = piece.committed == 0
    for number, batch in enumerate(batches):
        digest = chained_digest(batch, digest)
        if number + 1 == piece.committed:
            replayed = digest == piece.digest
            if not replayed:
                break
        if waiting is not None:
            yield FedBatch(epoch, piece.shard, waiting[0], waiting[1], False, waiting[2])
        waiting = (number, batch, digest) if number >= piece.committed else None
    if not replayed:
        raise DefinitionError(
            f"{definition.where('input')}: the data pipeline does not yield the same batches "
            "again: "
            f"the first {piece.committed} of shard {piece.shard} differ from those that were "
            "trained "
            "on. Draw random numbers from tf.random, numpy.random or random (they are seeded "
            "for you), not from the clock or the system."
        )
    if waiting is not None:
        yield FedBatch(epoch, piece.shard, waiting[0], waiting[1], True, waiting[2])
    else:
        yield FedBatch(epoch, piece.shard, piece.committed, None, True, digest)


def _without_labels(
    definition: ModelDefinition, source: RecordSource, schema: Schema
) -> tuple[Schema, list[Any]]:
    """Return the schema of records that lack labels, and the fields that are lacking.

    Which fields are labels is known to the user's input function alone. So a missing field is
    filled in, and the function is asked whether the features depend on what with.

    Raises:
        DataError: A missing field is needed for the features.
    """
    missing = [field for field in schema.fields if _is_missing(source, field)]
    if not missing:
        return schema, []
    present = [field for field in schema.fields if field not in missing]
    reduced = Schema(tuple(present))
    how = definition.input
    assert isinstance(how, RecordInput)  # noqa: S101 - only these have a schema
    where = functools.partial(_names, source, np.arange(1))

    def features_with(value: int | None) -> list[Any]:
        record = dict(source.read_records(0, 1, reduced)[0]) if present else {}
        record.update({field.name: _filled(field, value) for field in missing})
        with seeded(0):
            return leaves(make_batch(definition, how, [record], Mode.PREDICTION, where).features)

    first = features_with(0)
    for value in (1, None):
        if not all(map(np.array_equal, first, features_with(value))):
            raise DataError(
                f"{where()}: the records have no {', '.join(f.name for f in missing)}, which "
                f"{definition.origin} makes the model's inputs from. They have "
                f"{', '.join(sorted(f.name for f in present)) or 'none of its fields'}."
            )
    return reduced, missing


def _is_missing(source: RecordSource, field: Field) -> bool:
    """Return whether the records have no such field.

    Asked of a reader: tables keep a field of many values in many columns, and columns that the
    schema does not name need not be readable.
    """
    try:
        source.read_records(0, 1, Schema((field,)))
    except MissingFieldError:
        return True
    except SchemaError:
        # It is there; what is wrong with it is told where it is read.
        return False
    return False


def _filled(field: Field, value: int | None) -> np.ndarray[Any, Any]:
    """Return a value of a field: a number or a text; what is missing, if it may be."""
    if value is None and field.nullable:
        return field.missing(1)[0, ...]
    shape = (1,) if field.varies else field.shape
    number = value or 0
    return np.full(shape, b"%d" % number if field.dtype == STRING else number, field.dtype)


def _names_of(source: RecordSource, numbers: Ints, some: slice) -> str:
    return _names(source, numbers[some])


def _names(source: RecordSource, numbers: Ints) -> str:
    return Numbering(source.files).name_some(numbers)
