"""Records of the whole data meet in a minibatch, in whatever format they are stored."""

import weakref
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from elasticdl.data import csv, csv_index, recordio, tfrecord, units
from elasticdl.data.example import encode
from elasticdl.data.schema import Field, Schema
from elasticdl.data.sources import open_source
from elasticdl.definition import DatasetInput, ModelDefinition, Origin, RecordInput
from elasticdl.engines import shard_sizes as cutting
from elasticdl.engines.record_data import RecordData
from elasticdl.job import TrainingOptions
from elasticdl.sharding.ledger import ShardLease

NUM_RECORDS, NUM_LABELS, BATCH_SIZE = 12_000, 10, 64
LABELS = np.arange(NUM_RECORDS) * NUM_LABELS // NUM_RECORDS
SCHEMA = Schema((Field("label", (), np.dtype("int64")), Field("number", (), np.dtype("int64"))))


def write_examples(writer):
    with writer:
        for number, label in enumerate(LABELS):
            writer.write(encode({"label": np.int64([label]), "number": np.int64([number])}))


def write_recordio(compressor, path):
    write_examples(recordio.Writer(str(path), compressor, max_chunk_bytes=2_000))


def write_tfrecord(compressor, path):
    write_examples(tfrecord.TFRecordWriter(str(path), compressor))


def write_csv(path):
    rows = "".join(f"{label},{number}\n" for number, label in enumerate(LABELS))
    path.write_text("label,number\n" + rows)


def write_parquet(path):
    columns = {"label": LABELS, "number": np.arange(NUM_RECORDS)}
    pq.write_table(pa.table(columns), path, row_group_size=60)


FORMATS = {
    **{f"{name}.recordio": partial(write_recordio, name) for name in recordio.COMPRESSORS},
    **{f"{name}.tfrecord": partial(write_tfrecord, name) for name in tfrecord.COMPRESSORS},
    "rows.csv": write_csv,
    "rows.parquet": write_parquet,
}


@pytest.fixture(params=FORMATS)
def path(request, tmp_path, monkeypatch):
    # Everything in the proportion it has to a data set of gigabytes.
    for module in (units, tfrecord, csv):
        for name in ("LOCAL_UNIT_BYTES", "_INFLATED_UNIT_BYTES", "_UNIT_BYTES", "BLOCK_BYTES"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 1_000)
    monkeypatch.setattr(csv, "index_rows", partial(csv_index.index_rows, block_bytes=1_000))
    written = tmp_path / request.param
    FORMATS[request.param](written)
    return written


@pytest.fixture
def too_large(monkeypatch):
    """Let data of more than some bytes not fit into memory."""

    def set_limit(limit_bytes):
        monkeypatch.setattr(units, "CACHE_BYTES", limit_bytes)
        monkeypatch.setattr(cutting, "MAX_SHARD_BYTES", limit_bytes)

    return set_limit


def data_of(path, how=None):
    def stack(records):
        return np.stack([[r["label"], r["number"]] for r in records]), np.zeros(len(records))

    definition = ModelDefinition(
        origin=Origin("test", "model.py", 7, "model", "zoo"),
        framework="keras",
        create_model=lambda: None,
        input=how or RecordInput(stack, SCHEMA),
        loss=None,
        create_optimizer=lambda: None,
    )
    return RecordData(definition, open_source(str(path)))


def plan_of(data, **options):
    options = TrainingOptions(minibatch_size=BATCH_SIZE, **options)
    splits = isinstance(data.definition.input, RecordInput)
    return cutting.plan_shards(data.reader.units, options, splits=splits)


def batches_of(data, plan, epoch=0, leases=None):
    leases = [ShardLease(shard) for shard in range(plan.num_shards)] if leases is None else leases
    return [
        fed.batch.features
        for lease in leases
        for fed in data.shard_batches(plan, epoch, lease)
        if fed.batch is not None
    ]


def class_entropy(labels):
    """Return the mean entropy of the labels of minibatches, in nats."""
    whole = labels[: len(labels) // BATCH_SIZE * BATCH_SIZE].reshape(-1, BATCH_SIZE)
    shares = np.stack([np.bincount(row, minlength=NUM_LABELS) for row in whole]) / BATCH_SIZE
    return -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1).mean()


OF_A_PLAIN_SCRIPT = class_entropy(np.random.default_rng(0).permutation(LABELS))


@pytest.mark.parametrize("share", [1, 3])
def test_sorted_labels_are_mixed_as_in_a_plain_script(path, too_large, share):
    data = data_of(path)
    if share > 1:
        too_large(data.reader.units.memory_bytes // share)
    plan = plan_of(data)

    features = np.concatenate(batches_of(data, plan))

    assert bool(plan.blocks) == (share > 1)
    assert class_entropy(features[:, 0]) > 0.95 * OF_A_PLAIN_SCRIPT
    assert sorted(features[:, 1].tolist()) == list(range(NUM_RECORDS))
    assert (features[:, 0] == LABELS[features[:, 1]]).all()


@pytest.mark.parametrize("share", [1, 3])
def test_a_piece_of_a_shard_has_the_batches_of_the_whole_shard(path, too_large, share):
    one, other = data_of(path), data_of(path)
    if share > 1:
        too_large(one.reader.units.memory_bytes // share)
    plan = plan_of(one)
    whole = batches_of(one, plan, 2, [ShardLease(1)])

    front = batches_of(one, plan, 2, [ShardLease(1, 0, 3)])
    rear = batches_of(other, plan, 2, [ShardLease(1, 3)])

    assert [batch.tolist() for batch in front + rear] == [batch.tolist() for batch in whole]


def test_two_workers_train_on_each_record_once(path):
    workers = [data_of(path), data_of(path)]
    plan = plan_of(workers[0])
    shards = [[ShardLease(s) for s in range(rank, plan.num_shards, 2)] for rank in (0, 1)]

    seen = [batches_of(data, plan, 0, own) for data, own in zip(workers, shards, strict=True)]

    numbers = np.concatenate(seen[0] + seen[1])[:, 1]
    assert sorted(numbers.tolist()) == list(range(NUM_RECORDS))


def test_memory_is_bounded_if_data_do_not_fit(path, too_large):
    data = data_of(path)
    limit_bytes = data.reader.units.memory_bytes // 3
    too_large(limit_bytes)
    plan = plan_of(data)

    kept = []
    for shard in range(plan.num_shards):
        batches_of(data, plan, 0, [ShardLease(shard)])
        kept.append(sum(unit.memory_bytes for unit in data.reader._kept.values()))

    assert max(kept) <= limit_bytes
    assert plan.shard_size < NUM_RECORDS / 2


def test_units_of_a_shard_are_released_for_the_next(path, too_large, monkeypatch):
    data = data_of(path)
    too_large(data.reader.units.memory_bytes // 3)
    plan = plan_of(data)
    alive, most = weakref.WeakSet(), [0]
    read_unit = type(data.source).read_unit

    def counted(*args):
        unit = read_unit(*args)
        alive.add(unit)
        most[0] = max(most[0], sum(each.memory_bytes for each in alive))
        return unit

    monkeypatch.setattr(type(data.source), "read_unit", counted)
    batches_of(data, plan)

    # One shard, and little more while a unit is exchanged for another.
    assert most[0] < 1.25 * units.CACHE_BYTES


def test_a_unit_is_read_once_if_data_fit(path):
    data = data_of(path)
    plan = plan_of(data)
    batches_of(data, plan)
    path.unlink()

    assert len(batches_of(data, plan, epoch=1)) == -(-NUM_RECORDS // BATCH_SIZE)


def test_a_pipeline_gets_mixed_records(tmp_path):
    import tensorflow as tf

    def parse(record):
        spec = {name: tf.io.FixedLenFeature([], tf.int64) for name in ("label", "number")}
        parsed = tf.io.parse_single_example(record, spec)
        return tf.stack([parsed["label"], parsed["number"]]), 0

    path = tmp_path / "a.recordio"
    write_recordio("none", path)
    data = data_of(path, DatasetInput(lambda dataset, mode: dataset.map(parse)))
    plan = plan_of(data)

    features = np.concatenate(batches_of(data, plan))

    assert class_entropy(features[:, 0]) > 0.95 * OF_A_PLAIN_SCRIPT
    assert sorted(features[:, 1].tolist()) == list(range(NUM_RECORDS))


def test_data_that_cannot_be_mixed_well_are_named(tmp_path, too_large, caplog):
    path = tmp_path / "a.recordio"
    write_examples(recordio.Writer(str(path), max_chunk_bytes=20_000))
    data = data_of(path)
    too_large(data.reader.units.memory_bytes // 4)

    plan = plan_of(data)

    assert f"Only {plan.shard_size} records are shuffled at a time, from about" in caplog.text


def test_a_column_outside_the_schema_may_hold_anything(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,number,age\n1,0,\n2,1,30\n")
    data = data_of(path)

    (features,) = batches_of(data, plan_of(data))

    assert sorted(features[:, 1].tolist()) == [0, 1]


def test_records_that_are_read_one_by_one_are_not_shuffled_in_blocks(tmp_path, too_large):
    for i in range(100):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new("L", (2, 2)).save(tmp_path / f"a/{i:02}.png")
    too_large(1_000)

    plan = plan_of(data_of(tmp_path))

    assert plan.blocks == ()


def test_large_records_after_a_small_one_make_short_shards(tmp_path, monkeypatch):
    path = tmp_path / "a.recordio"
    with recordio.Writer(str(path), max_chunk_bytes=1_000) as writer:
        for size in [1] + [900] * 99:
            writer.write(encode({"x": [bytes(size)]}))
    monkeypatch.setattr(cutting, "MAX_SHARD_BYTES", 10_000)
    data = data_of(path)

    plan = cutting.plan_shards(data.reader.units, TrainingOptions(minibatch_size=2), splits=True)

    assert plan.minibatches_per_shard == 5
