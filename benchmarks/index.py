"""What an index of the data saves: opening a hundred thousand files, and reading from S3.

**Opening.** 100,000 RecordIO files of two records each, in one folder, in the page cache. The
driver lists them and opens them; then two workers, at the same time, open what the driver sends
them. The peer is what was done before: the driver and both workers each list the folder and look
into every file. Seconds are those of a clock, and of a core beside it, which other processes
disturb least; without importing packages, each time in new processes.

**First step.** The same files in an `elasticdl train --num_workers=2`, from the command to its
first step, with an index file and without. Importing the frameworks and compiling is most of it.

**S3.** 314 MB of RecordIO files on S3 (moto's server on this machine, so its time is not ours to
save) and on the disk, more than a worker keeps in memory. `read`: two processes at once read and
decode the shards that a worker each would have, opening the data included, and nothing else; once
by an index and once without. `train`: the rate of a training on two workers, records/s when it is
warm, which is what the bar is about.

Nobody is to be busy beside it. `BENCHMARK_SHORT=1` makes one short run of each: whether it works.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import ratio
from benchmarks.workers import NUM_WORKERS, Training, rates_of

HERE = Path(__file__).parent
SHORT = bool(os.environ.get("BENCHMARK_SHORT"))
RUNS = 1 if SHORT else 3
NUM_FILES = 5_000 if SHORT else 100_000
NUM_RECORDS = 8_192 if SHORT else 98_304
RECORDS_PER_FILE = 4_096
BATCH_SIZE = 64
OPEN_BAR_S, S3_BAR = 2.0, 0.8


def run():
    with tempfile.TemporaryDirectory() as folder, s3_server() as bucket:
        work = Path(folder)
        return {**opening(work), **reading(work, bucket)}


# --- opening ----------------------------------------------------------------------------------


def opening(work):
    data = write_small_files(work / "small")
    from elasticdl.data.index_file import INDEX_FILE, write_index_files
    from elasticdl.data.sources import index_data

    begin = time.perf_counter()
    write_index_files(index_data(str(data), lambda done, total: None))
    indexing_s = time.perf_counter() - begin
    index_file = data / INDEX_FILE
    figures = {}
    for name in ("with_index", "without"):
        if name == "without":
            index_file.rename(work / "index")
        figures[name] = [opened(work, data, sends=name == "with_index") for _ in range(RUNS)]
        print(name, figures[name])
    first_steps = {"without": [first_step_s(work, data) for _ in range(RUNS)]}
    (work / "index").rename(index_file)
    first_steps["with_index"] = [first_step_s(work, data) for _ in range(RUNS)]
    print("first step", first_steps)
    ours, peer = (
        [run["driver_s"] + run["worker_s"] for run in figures[name]]
        for name in ("with_index", "without")
    )
    return {
        "num_files": NUM_FILES,
        "indexing_s": round(indexing_s, 3),
        "index_bytes": index_file.stat().st_size,
        "open_s": ratio(ours, peer, 1.0, higher_is_better=False)
        | {"bar_s": OPEN_BAR_S, "met": statistics.median(ours) <= OPEN_BAR_S, "parts": figures},
        "first_step_s": first_steps,
    }


def write_small_files(folder):
    import numpy as np

    from elasticdl.data import recordio
    from elasticdl.data.example import encode

    folder.mkdir()
    first = folder / "part-000000.recordio"
    with recordio.Writer(str(first)) as writer:
        for label in range(2):
            image = np.full((64,), label, "float32")
            writer.write(encode({"image": image, "label": np.int64([label])}))
    content = first.read_bytes()
    for number in range(1, NUM_FILES):
        (folder / f"part-{number:06}.recordio").write_bytes(content)
    return folder


def opened(work, data, *, sends):
    """Return how long a driver and its workers take to open data."""
    sent = work / "sent"
    sent.unlink(missing_ok=True)
    driver_s, driver_cpu_s = together([["driver", data, *([sent] if sends else [])]])
    what = ["worker", sent] if sends else ["driver", data]
    worker_s, worker_cpu_s = together([what] * NUM_WORKERS)
    return {
        "driver_s": driver_s,
        "driver_cpu_s": driver_cpu_s,
        "worker_s": worker_s,
        "worker_cpu_s": worker_cpu_s,
    }


def first_step_s(work, data):
    begin = time.perf_counter()
    with Training(work, "timed_mlp", data, options=[f"--num_workers={NUM_WORKERS}"]) as training:
        training.wait_for(lambda t: t.events("step_committed"))
        return round(time.perf_counter() - begin, 2)


# --- S3 ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def s3_server():
    """Run an S3 server for this process and those it starts, and provide a bucket."""
    server = subprocess.Popen(
        [sys.executable, HERE.parent / "tests" / "s3_server.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{int(server.stdout.readline())}",
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
    )
    try:
        yield "s3://honest/index"
    finally:
        server.kill()
        server.wait()


def reading(work, bucket):
    import fsspec

    local = write_images(work / "images")
    fsspec.filesystem("s3").put(f"{local}/", f"{bucket}/", recursive=True)
    places = {"local": str(local), "s3": bucket}
    figures = {f"{how}_{name}": [] for how in ("read", "train") for name in places}
    figures["read_s3_without_index"] = []
    for _ in range(RUNS):
        for name, data in places.items():
            sent = work / f"sent-{name}"
            together([["driver", data, sent]])
            figures[f"read_{name}"].append(read_rate(["read", sent]))
        figures["read_s3_without_index"].append(read_rate(["read", bucket]))
        for name, data in places.items():
            both = Training(work, "cnn", data, options=[f"--num_workers={NUM_WORKERS}"])
            figures[f"train_{name}"] += rates_of([both])
        print({name: round(rates[-1]) for name, rates in figures.items()})
    return {
        "s3_train_records_per_s": ratio(figures["train_s3"], figures["train_local"], S3_BAR),
        "s3_read_records_per_s": ratio(figures["read_s3"], figures["read_local"], S3_BAR),
        "s3_read_records_per_s_without_index": figures["read_s3_without_index"],
    }


def read_rate(what):
    """Return how many records a second two processes read that have half of them each."""
    halves = [[*what, number] for number in range(NUM_WORKERS)]
    return round(NUM_RECORDS / together(halves)[0], 1)


def write_images(folder):
    import numpy as np

    from elasticdl.data import recordio
    from elasticdl.data.example import encode

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(NUM_RECORDS // RECORDS_PER_FILE):
        with recordio.Writer(str(folder / f"part-{number:05}.recordio")) as writer:
            for _ in range(RECORDS_PER_FILE):
                image = rng.normal(size=(28, 28)).astype("float32")
                writer.write(encode({"image": image, "label": np.int64([rng.integers(10)])}))
    return folder


# --- processes --------------------------------------------------------------------------------


def together(roles):
    """Let processes do something at the same time; return the most seconds, and those of a core."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.index", *map(str, role)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in roles
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    times = [map(float, process.communicate()[0].split()) for process in processes]
    return [round(max(column), 3) for column in zip(*times, strict=True)]


def act(role, what, *more):
    """Be one of the processes: import, wait, do it, print the seconds."""
    import s3fs  # noqa: F401 - not on the clock

    import elasticdl.data.recordio  # noqa: F401 - as well
    from elasticdl.data.data_index import decode, encode
    from elasticdl.data.schema import Schema
    from elasticdl.data.sources import open_index, open_source
    from elasticdl.data.unit_reader import UnitReader
    from elasticdl.engines.shard_sizes import plan_shards
    from elasticdl.gc_tuning import collect_seldom
    from elasticdl.job import TrainingOptions

    # As the command and its workers do.
    collect_seldom()
    schema = Schema.from_user(
        [
            {"name": "image", "shape": [28, 28], "dtype": "float32"},
            {"name": "label", "shape": [1], "dtype": "int64"},
        ],
        "the benchmark",
    )
    print("ready", flush=True)
    sys.stdin.readline()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    is_sent = Path(what).is_file()
    source = open_index(decode(Path(what).read_bytes(), what)) if is_sent else open_source(what)
    if role == "driver":
        for sent in more:
            Path(sent).write_bytes(encode(source.index()))
    if role == "read":
        reader = UnitReader(source, schema)
        plan = plan_shards(
            reader.units, TrainingOptions(minibatch_size=BATCH_SIZE, shuffle=True), splits=True
        )
        for shard in range(int(more[0]), plan.num_shards, NUM_WORKERS):
            numbers = plan.record_numbers(0, shard)
            gathered = reader.gather(numbers)
            for start in range(0, len(numbers), BATCH_SIZE):
                gathered.records(start, min(start + BATCH_SIZE, len(numbers)))
    print(time.perf_counter() - begin, time.process_time() - cpu_begin)


if __name__ == "__main__":
    act(*sys.argv[1:])
