"""How long a person waits: for help, for an import, for the first step of a training.

The first step is compared with a plain Keras script of the same model, both from the moment the
command is given, taking turns.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.training import HERE, write_data

RUNS = 5


def run():
    elasticdl = str(Path(sys.executable).parent / "elasticdl")
    result = {
        "help_s": _at_most(0.3, [_seconds([elasticdl, "--help"]) for _ in range(RUNS)]),
        "import_s": _at_most(
            0.1,
            [
                _seconds([sys.executable, "-c", "import elasticdl"])
                - _seconds([sys.executable, "-c", "pass"])
                for _ in range(RUNS)
            ],
        ),
    }
    with tempfile.TemporaryDirectory() as work:
        data = write_data(Path(work), "cnn", 2048)
        ours, peer = [], []
        for i in range(RUNS):
            ours.append(_our_first_step(elasticdl, data, Path(work), i))
            peer.append(_keras_first_step())
    extra = statistics.median(ours) - statistics.median(peer)
    result["first_step_s"] = {
        "ours": statistics.median(ours),
        "peer": statistics.median(peer),
        "extra_s": round(extra, 2),
        "bar": 1.0,
        "met": extra <= 1.0,
        "runs": {"ours": ours, "peer": peer},
    }
    return result


def _at_most(bar, seconds):
    value = statistics.median(seconds)
    return {"ours": round(value, 4), "bar": bar, "met": value <= bar, "runs": seconds}


def _seconds(command):
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def _our_first_step(elasticdl, data, work, i):
    told = work / f"first_step_{i}"
    begin = time.time()
    subprocess.run(
        [
            elasticdl,
            "train",
            f"--model_zoo={HERE / 'zoo'}",
            "--model_def=first_step",
            f"--data={data}",
            f"--output={work / f'out{i}'}",
            "--max_steps=1",
        ],
        check=True,
        capture_output=True,
        env={**os.environ, "FIRST_STEP_FILE": str(told), "CUDA_VISIBLE_DEVICES": ""},
    )
    return float(told.read_text()) - begin


def _keras_first_step():
    begin = time.time()
    done = subprocess.run(
        [sys.executable, HERE / "peers" / "keras_fit.py", "cnn", "2048", "64", "1", "first_step"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    return float(done.stdout.splitlines()[-1]) - begin
