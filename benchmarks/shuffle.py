"""What shuffling all records costs, against shuffling each 2,048 neighbours: records a second.

The peer shuffles as this package did before: ranges of 2,048 records, each read at once by
`read_records`, come in a random order, and records are mixed within a range. On both sides an input
function stacks arrays to batches of 64. Each run opens the files again and is two epochs long, so
that it contains all reading, checking and decompressing. Seconds are those of the processor, which
other processes disturb least; files are in the page cache. (`cold`: the kernel is asked to forget
them before each run, and seconds are those of a clock.) Runs of the two alternate.

Each format is measured twice: with data that fit into memory, any record of which may follow any
other, and with data that do not. For the second, the memory is made smaller, not the data larger.
"""

import os
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.record import ratio

BATCH_SIZE = 64
RUNS = 3
NUM_EPOCHS = 2
NEIGHBOURS = 2048
TOTAL_BYTES = 32 << 20
# Data with small records take longest for their bytes.
SMALL_BYTES = 8 << 20
# Where data shall not fit: a quarter of them does.
PART = 4
BAR = 0.95


def run():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from elasticdl.data import units
    from elasticdl.engines import shard_sizes

    result = {}
    before = units.CACHE_BYTES, shard_sizes.MAX_SHARD_BYTES, units.LOCAL_UNIT_BYTES
    print(f"{'records':<14}{'format':<18}{'data':<12}{'all/s':>11}{'local/s':>10}{'ratio':>7}")
    for kind, make in KINDS.items():
        for name, write in FORMATS.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"data.{name.split()[0]}"
                total_bytes, records = _records(make)
                if not write(path, records):
                    continue
                for fits in (True, False):
                    if not fits:
                        units.CACHE_BYTES = shard_sizes.MAX_SHARD_BYTES = total_bytes // PART
                        units.LOCAL_UNIT_BYTES = total_bytes // PART // 64
                    try:
                        figures = _compare(path, kind)
                    finally:
                        (
                            units.CACHE_BYTES,
                            shard_sizes.MAX_SHARD_BYTES,
                            units.LOCAL_UNIT_BYTES,
                        ) = before
                    data = "fit" if fits else "do not fit"
                    print(
                        f"{kind:<14}{name:<18}{data:<12}{figures['ours']:>11.0f}"
                        f"{figures['peer']:>10.0f}{figures['ratio']:>7.2f}"
                    )
                    key = f"{kind} {name} {data}".replace(" ", "_")
                    result[f"{key}_records_per_s"] = figures
    return result


def _small(rng, number):
    import numpy as np

    return {"x": rng.normal(size=8).astype(np.float32), "label": np.int64([number % 10])}


def _bytes(size, rng, number):
    import numpy as np

    # Every second byte is drawn: what is stored compresses, but not to nothing.
    x = np.zeros(size, np.uint8)
    x[::2] = rng.integers(256, size=-(-size // 2))
    return {"x": [x.tobytes()], "label": np.int64([number % 10])}


KINDS = {"row 8": _small, "image 784": partial(_bytes, 784), "image 10 kB": partial(_bytes, 10_000)}


def _records(make):
    import numpy as np

    from elasticdl.data.example import encode

    rng = np.random.default_rng(0)
    record_bytes = len(encode(make(rng, 0)))
    total_bytes = TOTAL_BYTES if record_bytes > 500 else SMALL_BYTES
    return total_bytes, [make(rng, i) for i in range(total_bytes // record_bytes)]


def _write_recordio(compressor, path, records):
    from elasticdl.data.example import encode
    from elasticdl.data.recordio import Writer

    # So that a quarter of the data is as many chunks as 256 MiB are of the usual 4 MiB.
    size_bytes = max(64 << 10, sum(len(encode(record)) for record in records) // (64 * PART))
    with Writer(str(path), compressor, size_bytes) as writer:
        for record in records:
            writer.write(encode(record))
    return True


def _write_tfrecord(path, records):
    from elasticdl.data.example import encode
    from elasticdl.data.tfrecord import TFRecordWriter

    with TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(encode(record))
    return True


def _write_csv(path, records):
    if isinstance(records[0]["x"], list):
        return False
    lines = [",".join([f"x_{i}" for i in range(8)] + ["label"])]
    lines += [",".join(f"{x:.6g}" for x in r["x"]) + f",{r['label'][0]}" for r in records]
    path.write_text("\n".join(lines) + "\n")
    return True


def _write_parquet(path, records):
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(records[0]["x"], list):
        columns = {"x": pa.array([r["x"][0] for r in records], pa.binary())}
    else:
        columns = {f"x_{i}": pa.array([r["x"][i] for r in records]) for i in range(8)}
    columns["label"] = pa.array([int(r["label"][0]) for r in records])
    pq.write_table(pa.table(columns), path, row_group_size=len(records) // (64 * PART))
    return True


FORMATS = {
    "recordio none": partial(_write_recordio, "none"),
    "recordio snappy": partial(_write_recordio, "snappy"),
    "recordio gzip": partial(_write_recordio, "gzip"),
    "tfrecord": _write_tfrecord,
    "csv": _write_csv,
    "parquet": _write_parquet,
}


def _compare(path, kind):
    everything, local = [], []
    for i in range(RUNS + 1):
        mine, theirs = _rate(path, kind), _rate(path, kind, local=True)
        # The first time warms up.
        if i:
            everything.append(round(mine))
            local.append(round(theirs))
    figures = ratio(everything, local, BAR)
    cold = [
        [round(_rate(path, kind, local=local, cold=True)) for _ in range(3)]
        for local in (False, True)
    ]
    figures["cold"] = ratio(*cold, BAR)
    return figures


def _rate(path, kind, *, local=False, cold=False):
    """Return records a second."""
    import numpy as np

    from elasticdl.data.schema import Field, Schema
    from elasticdl.data.sources import open_source
    from elasticdl.definition import ModelDefinition, Origin, RecordInput
    from elasticdl.engines.feed import training_batches
    from elasticdl.engines.record_data import RecordData
    from elasticdl.job import TrainingOptions
    from elasticdl.sharding.epoch_order import ShardPlan
    from elasticdl.sharding.ledger import Ledger

    x = (
        Field("x", (8,), np.dtype("float32"))
        if kind == "row 8"
        else Field("x", (784 if kind == "image 784" else 10_000,), np.dtype("uint8"))
    )
    schema = Schema((x, Field("label", (1,), np.dtype("int64"))))

    def stack(records):
        return np.stack([r["x"] for r in records]), np.stack([r["label"] for r in records])

    definition = ModelDefinition(
        origin=Origin("benchmark", "shuffle.py", 1, "model", "zoo"),
        framework="keras",
        create_model=lambda: None,
        input=RecordInput(stack, schema),
        loss=None,
        create_optimizer=lambda: None,
    )
    if cold:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    data = RecordData(definition, open_source(str(path)))
    clock = time.perf_counter if cold else time.process_time
    started = clock()
    plan = data.cut(_JobOf(TrainingOptions(minibatch_size=BATCH_SIZE)))
    shard_batches = partial(data.shard_batches, plan)
    if local:
        plan = ShardPlan(data.num_records, BATCH_SIZE, NEIGHBOURS // BATCH_SIZE)
        shard_batches = partial(_local_batches, definition, data.source, plan)
    ledger = Ledger(plan.num_shards, plan.minibatches_per_shard)
    total = 0
    for fed in training_batches(shard_batches, ledger, rank=0, ranks=[0], num_epochs=NUM_EPOCHS):
        total += fed.batch.num_examples
    return total / (clock() - started)


def _local_batches(definition, source, plan, epoch, lease):
    """Yield the batches of one range of neighbours."""
    import numpy as np

    from elasticdl.definition import Mode
    from elasticdl.engines.feed import TrainingBatch
    from elasticdl.engines.randomness import seeded
    from elasticdl.engines.record_data import make_batch
    from elasticdl.sharding.permutation import derive_seed, permute

    shard = int(permute(lease.shard, plan.num_shards, derive_seed(plan.seed, epoch)))
    start, stop = plan.span(shard)
    places = np.arange(stop - start)
    order = permute(places, len(places), derive_seed(plan.seed, epoch, lease.shard, 1))
    records = source.read_records(start, stop, definition.input.schema)
    numbers = range(0, len(order), BATCH_SIZE)
    for number, first in enumerate(numbers):
        chosen = [records[i] for i in order[first : first + BATCH_SIZE]]
        with seeded(derive_seed(plan.seed, epoch, lease.shard, number, 2)):
            batch = make_batch(definition, definition.input, chosen, Mode.TRAINING, str)
        yield TrainingBatch(epoch, lease.shard, number, batch, number + 1 == len(numbers))


class _JobOf:
    def __init__(self, training):
        self.training = training
