"""Training as a user gets it by default, against `model.fit` by default.

Both in a process of their own pinned to one core, epochs after the first one (which compiles).
Ours reads RecordIO files through the user's `input_fn`; the peer once has its arrays in memory and
once reads the same records from a TFRecord file.
Then steps alone: our trainer against Keras' own `train_function`, one step a call and 32.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import ratio

HERE = Path(__file__).parent
RUNS = 5
CASES = {
    # model: (records, minibatch size, epochs, bar)
    "cnn": (2048, 64, 4, 1.2),
    "mlp": (65536, 32, 4, 2.0),
}


def run():
    result = {}
    with tempfile.TemporaryDirectory() as work:
        for model, (num_records, minibatch_size, num_epochs, bar) in CASES.items():
            data = write_data(Path(work), model, num_records)
            same_data = _as_tfrecord(data)
            sizes = (num_records, minibatch_size, num_epochs)
            ours, in_memory, from_files = [], [], []
            for i in range(RUNS):
                ours.append(
                    _ours(model, data, Path(work, f"{model}{i}"), minibatch_size, num_epochs)
                )
                in_memory.append(_fit(model, *sizes))
                from_files.append(_fit(model, *sizes, str(same_data)))
            result[f"{model}_records_per_s_fit_from_memory"] = ratio(ours, in_memory, bar)
            result[f"{model}_records_per_s_fit_from_tfrecord"] = ratio(ours, from_files, bar)
    for line in pinned([sys.executable, "-m", "benchmarks.steps"]).splitlines():
        if line.startswith("{"):
            result.update(json.loads(line))
    return result


def write_data(work, model, num_records):
    import numpy as np

    from elasticdl.data import recordio
    from elasticdl.data.example import encode

    shape = (28, 28) if model == "cnn" else (64,)
    rng = np.random.default_rng(0)
    path = work / f"{model}.recordio"
    with recordio.Writer(str(path)) as writer:
        for _ in range(num_records):
            image = rng.normal(size=shape).astype("float32")
            writer.write(encode({"image": image, "label": np.int64([rng.integers(10)])}))
    return path


def train(model, data, output, minibatch_size, num_epochs, *, stop_after_s=None):
    """Train as a user does, pinned to one core."""
    pinned(
        [
            sys.executable,
            "-m",
            "elasticdl.cli.main",
            "train",
            f"--model_zoo={HERE / 'zoo'}",
            f"--model_def={model}",
            f"--data={data}",
            f"--output={output}",
            f"--minibatch_size={minibatch_size}",
            f"--num_epochs={num_epochs}",
        ],
        stop_after_s,
    )


def _ours(model, data, output, minibatch_size, num_epochs):
    train(model, data, output, minibatch_size, num_epochs)
    lines = Path(output, "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    ends = [event["time"] for event in events if event["event"] == "epoch_finished"]
    num_records = next(e["num_records"] for e in events if e["event"] == "job_started")
    return num_records / statistics.median(b - a for a, b in itertools.pairwise(ends))


def _as_tfrecord(path):
    from elasticdl.data import tfrecord
    from elasticdl.data.sources import open_source

    source = open_source(str(path))
    same = path.with_suffix(".tfrecord")
    with tfrecord.TFRecordWriter(str(same)) as writer:
        for record in source.read_bytes(0, source.num_records):
            writer.write(record)
    return same


def _fit(model, num_records, minibatch_size, num_epochs, *file):
    script = HERE / "peers" / "keras_fit.py"
    printed = pinned(
        [
            sys.executable,
            str(script),
            model,
            str(num_records),
            str(minibatch_size),
            str(num_epochs),
            *file,
        ]
    )
    line = next(line for line in printed.splitlines() if line.startswith("epochs"))
    return num_records / statistics.median(map(float, line.split()[2:]))


def pinned(command, stop_after_s=None):
    """Run a command on one core and return what it printed; Ctrl-C it after some seconds."""
    stop = ["timeout", "--signal=INT", "--preserve-status", str(stop_after_s)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        ["taskset", "-c", "0", *(stop if stop_after_s else []), *command],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=HERE.parent,
    )
    if done.returncode and not stop_after_s:
        sys.exit(f"{command} failed:\n{done.stderr[-3000:]}")
    return done.stdout
