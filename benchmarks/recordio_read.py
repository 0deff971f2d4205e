"""Reading RecordIO, against `tf.data.TFRecordDataset` on the same records, in MB a second.

Both as a user reads them: files opened anew in each run, batches of 64 one after the other, the
peer with `prefetch(AUTOTUNE)` and so with a thread of its own, ours in one thread. The peer's
batches stay tensors; making bytes of them, as ours are, would cost it more (`peer_as_numpy`).
Files are in the page cache. The peer's are never compressed: of a TFRecord file that is, no
record can be read by its number. So where records hardly compress and the processor is what is
waited for (photographs of 150 KB with snappy), ours may stay behind.

On two cores the peer has two speeds, one nearly twice the other, depending on where its threads
come to run; a median falls into either. So the best run of each is compared as well
(`ratio_of_best`): it is the ratio to believe where the two differ, and both must meet the bar.
"""

import os
import statistics
import tempfile
import time
from importlib import metadata
from pathlib import Path

from benchmarks.record import ratio

BATCH_SIZE = 64
RUNS = 15
TOTAL_BYTES = 120 << 20
# What the writers before us made, unless told otherwise.
OLD_CHUNK_BYTES = 32 << 20
BAR = 1.0


def run():
    # Before TensorFlow is loaded, or it talks.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from elasticdl.data.recordio import DEFAULT_MAX_CHUNK_BYTES

    packages = ("cramjam", "google-crc32c", "isal", "scikit-learn")
    result = {"packages": {name: metadata.version(name) for name in packages}}
    titles = f"{'ours MB/s':>10}{'peer MB/s':>11}{'ratio':>7}{'of best':>9}"
    print(f"{'records':<14}{'RecordIO':<28}{titles}")
    with tempfile.TemporaryDirectory() as folder:
        for records_name, records in _records():
            peer_path = _write_tfrecord(Path(folder), records)
            for compressor in ("none", "snappy"):
                for chunk_bytes in (DEFAULT_MAX_CHUNK_BYTES, OLD_CHUNK_BYTES):
                    path = _write_recordio(Path(folder), records, compressor, chunk_bytes)
                    stored = f"{compressor}, chunks of {chunk_bytes >> 20} MiB"
                    figures = _compare(path, peer_path, records)
                    shown = f"{figures['ours']:>10.0f}{figures['peer']:>11.0f}"
                    print(
                        f"{records_name:<14}{stored:<28}{shown}{figures['ratio']:>7.2f}{figures['ratio_of_best']:>9.2f}"
                    )
                    key = f"{records_name} {stored}"
                    result[f"{key.replace(', ', ' ').replace(' ', '_')}_mb_per_s"] = figures
    return result


def _records():
    """Yield kinds of records with their names: serialized examples, as users have them."""
    import numpy as np
    from sklearn.datasets import load_sample_images

    from elasticdl.data.example import encode

    rng = np.random.default_rng(0)
    photographs = load_sample_images().images

    def image(side):
        photograph = photographs[rng.integers(len(photographs))]
        top, left = (rng.integers(size - side) for size in photograph.shape[:2])
        return photograph[top : top + side, left : left + side].tobytes()

    def labelled(side):
        return encode({"image": [image(side)], "label": np.int64([rng.integers(10)])})

    def row():
        return encode({"x": rng.normal(size=16).astype("float32"), "y": np.int64([1])})

    for name, make in (
        ("image 3 KB", lambda: labelled(32)),
        ("image 150 KB", lambda: labelled(224)),
        ("row 0.1 KB", row),
    ):
        size_bytes = len(make())
        # Rows cost so much each that fewer bytes of them take as long.
        total_bytes = TOTAL_BYTES if size_bytes > 1000 else TOTAL_BYTES // 4
        yield name, [make() for _ in range(total_bytes // size_bytes)]


def _compare(path, peer_path, records):
    ours, peer = [], []
    for i in range(RUNS + 1):
        mine, theirs = _read_ours(path), _read_peer(peer_path)
        # The first time warms up caches and thread pools, for both.
        if i:
            ours.append(mine)
            peer.append(theirs)
    megabytes = sum(map(len, records)) / 1e6
    figures = ratio(
        [round(megabytes / seconds, 1) for seconds in ours],
        [round(megabytes / seconds, 1) for seconds in peer],
        BAR,
    )
    as_numpy = statistics.median(_read_peer(peer_path, as_numpy=True) for _ in range(3))
    ratio_of_best = round(min(peer) / min(ours), 3)
    return figures | {
        "ratio_of_best": ratio_of_best,
        "met": figures["met"] and ratio_of_best >= BAR,
        "peer_as_numpy": round(megabytes / as_numpy, 1),
    }


def _read_ours(path):
    from elasticdl.data.recordio import RecordIOSource

    started = time.perf_counter()
    source = RecordIOSource([str(path)])
    for start in range(0, source.num_records, BATCH_SIZE):
        source.read_bytes(start, min(start + BATCH_SIZE, source.num_records))
    return time.perf_counter() - started


def _read_peer(path, *, as_numpy=False):
    import tensorflow as tf

    started = time.perf_counter()
    dataset = tf.data.TFRecordDataset(str(path)).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
    for _ in dataset.as_numpy_iterator() if as_numpy else dataset:
        pass
    return time.perf_counter() - started


def _write_recordio(folder, records, compressor, chunk_bytes):
    from elasticdl.data.recordio import Writer

    path = folder / "ours.recordio"
    with Writer(str(path), compressor, chunk_bytes) as writer:
        for record in records:
            writer.write(record)
    return path


def _write_tfrecord(folder, records):
    from elasticdl.data.tfrecord import TFRecordWriter

    path = folder / "peer.tfrecord"
    with TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path
