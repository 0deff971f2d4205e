"""From a place in the ledger to the batches that come next.

A batch is a function of (seed, epoch, shard, number): it can be made again, here or on
another worker, and is the same. Records are found by seeking; a `tf.data` pipeline of the
user's is built again and its committed batches skipped, and a rolling hash shows that what was
skipped is what was trained on.
"""

from __future__ import annotations

import importlib
import random
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, Record, leaves, map_arrays
from elasticdl.data.record_source import RecordSource, locate
from elasticdl.data.schema import Schema
from elasticdl.data.sources import open_source
from elasticdl.definition import DatasetInput, Mode, ModelDefinition, RecordInput
from elasticdl.errors import (
    DataError,
    DefinitionError,
    ElasticDLError,
    SchemaError,
    UserCodeError,
    users_traceback,
)
from elasticdl.sharding.ledger import Ledger, Piece, Row
from elasticdl.sharding.permutation import derive_seed

if TYPE_CHECKING:
    from elasticdl.sharding.shard import ShardPlan

MINIBATCHES_AT_ONCE = 32
"""So many `batches_in_order` reads at once; a pipeline of the user's is built anew for each."""


@dataclass(frozen=True, eq=False)
class FedBatch:
    """A batch and where it stands.

    Attributes:
        epoch: From 0.
        shard: Position in the epoch's order.
        number: Batch of that shard, from 0.
        batch: None if the shard has no batch at all.
        finished: It is the shard's last; a piece may end before, the ledger knows where.
        digest: Rolling hash of the shard's batches up to and with this one; 0 where records
            are found by seeking.
    """

    epoch: int
    shard: int
    number: int
    batch: Batch | None
    finished: bool
    digest: int = 0


def open_records(definition: ModelDefinition, data: str) -> RecordSource:
    """Open records with the model's own reader if it has one, else with ours.

    Raises:
        DataError: There are none, or they cannot be read.
    """
    return definition.open_source(data) if definition.open_source else open_source(data)


def training_batches(
    definition: ModelDefinition,
    source: RecordSource,
    plan: ShardPlan,
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
        definition: How records become batches.
        source: The records.
        plan: The cut into shards.
        ledger: Where to start; the caller's ledger goes the same way as it commits.
        slot: Whose batches.
        slots: All that train, `slot` among them.
        num_epochs: Where to end.
    """
    while True:
        ledger = ledger.deal(slots)
        piece = ledger.piece_of(slot)
        if piece is not None:
            yield from shard_batches(definition, source, plan, ledger.epoch, piece)
        if not ledger.epoch_done:
            ledger = ledger.advance([Row(each, 0, finished=True) for each in ledger.in_hand])
        elif ledger.epoch + 1 < num_epochs:
            ledger = ledger.next_epoch()
        else:
            return


def shard_batches(
    definition: ModelDefinition,
    source: RecordSource,
    plan: ShardPlan,
    epoch: int,
    piece: Piece,
) -> Iterator[FedBatch]:
    """Yield the batches of a piece that are not committed yet."""
    start, _ = plan.record_range(epoch, piece.shard)
    order = plan.record_order(epoch, piece.shard)
    if isinstance(definition.input, RecordInput):
        records = source.read_records(start, start + len(order), definition.input.schema)
        num_batches = plan.num_batches(epoch, piece.shard)
        stop = min(num_batches, piece.stop or num_batches)
        if piece.committed >= stop:
            # The rear part of a shard that is shorter than others.
            yield FedBatch(epoch, piece.shard, piece.committed, None, finished=True)
        for number in range(piece.committed, stop):
            chosen = order[number * plan.minibatch_size : (number + 1) * plan.minibatch_size]
            reseed(derive_seed(plan.seed, epoch, piece.shard, number, 2))
            batch = make_batch(
                definition,
                definition.input,
                [records[i] for i in chosen],
                Mode.TRAINING,
                _range_name(source, start, start + len(order)),
            )
            yield FedBatch(epoch, piece.shard, number, batch, number + 1 == num_batches)
        return
    # Imported before seeding, or its first pipeline would be unseeded.
    importlib.import_module("elasticdl.data.tensorflow")
    reseed(derive_seed(plan.seed, epoch, piece.shard, 2))
    raw = source.read_bytes(start, start + len(order))
    batches = _pipeline_batches(
        definition,
        definition.input,
        [raw[i] for i in order],
        mode=Mode.TRAINING,
        minibatch_size=plan.minibatch_size,
        where=_range_name(source, start, start + len(order)),
    )
    yield from _after_replay(definition, batches, epoch, piece)


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
        where = _range_name(source, first, last)
        if isinstance(definition.input, DatasetInput):
            reseed(derive_seed(0, first, 3))
            done = first
            for batch in _pipeline_batches(
                definition,
                definition.input,
                source.read_bytes(first, last),
                mode=mode,
                minibatch_size=minibatch_size,
                where=where,
            ):
                yield done, batch
                done += batch.num_examples
            if mode is Mode.PREDICTION and done != last:
                raise DataError(
                    f"{where}: the pipeline of {definition.origin} yields {done - first} "
                    f"examples of {last - first} records in prediction mode, so outputs cannot "
                    "be matched with records. Do not filter or repeat there."
                )
            continue
        records = source.read_records(first, last, schema)
        for begin in range(0, len(records), minibatch_size):
            some = [
                {**record, **{f.name: np.zeros(f.shape, f.dtype) for f in missing}}
                if missing
                else record
                for record in records[begin : begin + minibatch_size]
            ]
            # For each, so that what is drawn does not depend on where a range of records begins.
            reseed(derive_seed(0, first + begin, 3))
            yield first + begin, make_batch(definition, definition.input, some, mode, where)


def make_batch(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    mode: Mode,
    where: str,
) -> Batch:
    """Run the user's input function on decoded records.

    Raises:
        UserCodeError: It raised; names the records and holds the user's traceback.
        DefinitionError: What it returned is not a batch.
    """
    try:
        made = how.input_fn(records, mode) if how.takes_mode else how.input_fn(records)
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{definition.origin}: the input function raised on {where}:\n{users_traceback(error)}"
        ) from error
    pair = made if isinstance(made, tuple) else (made, None)
    arrays = leaves(map_arrays(np.asarray, pair))
    sizes = {array.shape[0] if array.ndim else 0 for array in arrays}
    if len(pair) != len(("features", "labels")) or len(sizes) != 1 or 0 in sizes:
        shapes = [list(array.shape) for array in arrays]
        raise DefinitionError(
            f"{definition.origin}: the input function made arrays of the shapes {shapes} from "
            f"{len(records)} records; expected (features, labels), every array with one entry "
            "an example along its first axis."
        )
    features, labels = map_arrays(np.asarray, pair)
    if labels is None and mode is not Mode.PREDICTION:
        raise DefinitionError(
            f"{definition.origin}: the input function returned no labels in {mode.value}; "
            "expected the pair (features, labels)."
        )
    return Batch(features, labels, sizes.pop())


def reseed(seed: int) -> None:
    """Make what user code draws from Python, NumPy and TensorFlow a function of `seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - users call np.random.*
    if "tensorflow" in sys.modules:
        from elasticdl.data import tensorflow  # noqa: PLC0415 - only where it is loaded anyway

        tensorflow.reseed(seed)


def _pipeline_batches(
    definition: ModelDefinition,
    how: DatasetInput,
    records: Sequence[bytes],
    *,
    mode: Mode,
    minibatch_size: int,
    where: str,
) -> Iterator[Batch]:
    from elasticdl.data import tensorflow  # noqa: PLC0415 - only pipelines need it

    try:
        yield from tensorflow.example_batches(
            records,
            lambda dataset: how.create_dataset(dataset, mode),
            minibatch_size,
            str(definition.origin),
        )
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{definition.origin}: the data pipeline raised on {where}:\n{users_traceback(error)}"
        ) from error


def _after_replay(
    definition: ModelDefinition, batches: Iterator[Batch], epoch: int, piece: Piece
) -> Iterator[FedBatch]:
    """Skip the committed batches of a pipeline, proving that they are the same; yield the rest."""
    digest = 0
    waiting: tuple[int, Batch, int] | None = None
    replayed = piece.committed == 0
    for number, batch in enumerate(batches):
        digest = _digest(batch, digest)
        if number + 1 == piece.committed:
            replayed = digest == piece.digest
            if not replayed:
                break
        if waiting is not None:
            yield FedBatch(epoch, piece.shard, waiting[0], waiting[1], False, waiting[2])
        waiting = (number, batch, digest) if number >= piece.committed else None
    if not replayed:
        raise DefinitionError(
            f"{definition.origin}: the data pipeline does not yield the same batches again: the "
            f"first {piece.committed} of shard {piece.shard} differ from those that were trained "
            "on. Draw random numbers from tf.random, numpy.random or random (they are seeded "
            "for you), not from the clock or the system."
        )
    if waiting is not None:
        yield FedBatch(epoch, piece.shard, waiting[0], waiting[1], True, waiting[2])
    else:
        yield FedBatch(epoch, piece.shard, piece.committed, None, True, digest)


def _digest(batch: Batch, before: int) -> int:
    for array in leaves((batch.features, batch.labels)):
        # Texts are objects: what lies in the array is where they are, not what they say.
        data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        before = zlib.crc32(data, before)
    return before


def _without_labels(
    definition: ModelDefinition, source: RecordSource, schema: Schema
) -> tuple[Schema, list[Any]]:
    """Return the schema of records that lack labels, and the fields that are lacking.

    Which fields are labels is known to the user's input function alone. So a missing field is
    filled in, and the function is asked whether the features depend on what with.

    Raises:
        DataError: A missing field is needed for the features.
    """
    try:
        # Tables keep a field of many values in many columns: only the schema finds it.
        source.read_records(0, 1, schema)
    except SchemaError:
        present = set(source.read_records(0, 1, None)[0])
    else:
        return schema, []
    missing = [field for field in schema.fields if field.name not in present]
    if not missing:
        return schema, []
    reduced = Schema(tuple(field for field in schema.fields if field.name in present))
    how = definition.input
    assert isinstance(how, RecordInput)  # noqa: S101 - only these have a schema
    where = _range_name(source, 0, 1)

    def features_with(value: int) -> list[Any]:
        record = dict(source.read_records(0, 1, reduced)[0])
        record.update({f.name: np.full(f.shape, value).astype(f.dtype) for f in missing})
        reseed(0)
        return leaves(make_batch(definition, how, [record], Mode.PREDICTION, where).features)

    if any(
        not np.array_equal(a, b) for a, b in zip(features_with(0), features_with(1), strict=True)
    ):
        raise DataError(
            f"{where}: the records have no {', '.join(f.name for f in missing)}, which "
            f"{definition.origin} makes the model's inputs from. They have "
            f"{', '.join(sorted(present))}."
        )
    return reduced, missing


def _range_name(source: RecordSource, start: int, stop: int) -> str:
    file, first = locate(source.files, start)
    last_file, last = locate(source.files, stop - 1)
    if file == last_file:
        return f"{file}, records {first} to {last}"
    return f"{file}, record {first}, to {last_file}, record {last}"
