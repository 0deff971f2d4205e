"""What a session costs beside Keras: a step of it, and going on in the middle of an epoch.

The model and the pipeline are those of a project in `benchmarks/zoo/session`: a `PyDataset` of
arrays, which is indexed. Steps are compared with `model.fit` on the same batches, taking turns.
Going on is measured from the command to the end of the first new step, and compared with a session
that begins: what is more than that is the price of the place.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import ratio

PROJECT = Path(__file__).parent / "zoo" / "session"
RUNS = 5
STEPS = 2000
EPOCH = 20_000


def run():
    with tempfile.TemporaryDirectory() as work:
        ours, peer = [], []
        for number in range(RUNS):
            ours.append(_our_steps(Path(work), number))
            peer.append(_keras_steps())
        begun = [_first_step(Path(work) / f"begin{i}") for i in range(RUNS)]
        gone_on = [_after_a_kill(Path(work) / f"goon{i}") for i in range(RUNS)]
    extra = statistics.median(gone_on) - statistics.median(begun)
    overhead_us = [(1 / a - 1 / b) * 1e6 for a, b in zip(ours, peer, strict=True)]
    return {
        "steps_per_s": ratio(ours, peer, 1.0),
        "overhead_us_per_step": {
            "ours": statistics.median(overhead_us),
            "bar": 100,
            "met": statistics.median(overhead_us) <= 100,
            "runs": overhead_us,
        },
        "go_on_in_the_middle_s": {
            "begin": statistics.median(begun),
            "go_on": statistics.median(gone_on),
            "extra": extra,
            "bar": 5.0,
            "met": extra <= 5.0,
            "runs": {"begin": begun, "go_on": gone_on},
        },
    }


def _session(work, *options, **environment):
    project = work / "project"
    if not project.exists():
        shutil.copytree(PROJECT, project)
    command = [
        sys.executable, "-m", "elasticdl.cli.main", "session", "run", "--run_name=mlp", "--quiet",
        f"--project_root={project}", f"--data_dir={work}", "--no-track", *options,
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _our_steps(work, number):
    """Return steps a second, from the first second of steps to the last."""
    folder = work / f"steps{number}"
    folder.mkdir()
    process = _session(folder, NUM_BATCHES=str(EPOCH))
    events = folder / "project/runs/mlp/training/events.jsonl"
    told = []
    while process.poll() is None and len(told) < 8:
        time.sleep(0.2)
        if events.exists():
            # The last line may be half written.
            lines = events.read_text().rpartition("\n")[0].splitlines()
            told = [e for e in map(json.loads, lines) if e["event"] == "step_committed"]
    process.kill()
    process.wait()
    first, last = told[1], told[-1]
    return (last["step"] - first["step"]) / (last["time"] - first["time"])


def _keras_steps():
    script = f"""
import sys, time
sys.path.insert(0, {str(PROJECT / "src")!r})
import components
builder = components.Builder(None)
model = builder.get_compiled_model()
batches = components.Batches({EPOCH})
model.fit(batches, steps_per_epoch=200, epochs=1, verbose=0)
begin = time.perf_counter()
model.fit(batches, steps_per_epoch={STEPS}, epochs=1, verbose=0)
print({STEPS} / (time.perf_counter() - begin))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def _first_step(folder, *options):
    """Return the seconds from the command to the end of its first step."""
    folder.mkdir(exist_ok=True)
    file = folder / "first_step"
    file.unlink(missing_ok=True)
    begin = time.time()
    process = _session(folder, *options, NUM_BATCHES=str(EPOCH), FIRST_STEP=str(file))
    while process.poll() is None and not file.exists():
        time.sleep(0.005)
    # Until a checkpoint is there, for who goes on.
    checkpoints = folder / "project/runs/mlp/training/checkpoints"
    while process.poll() is None and options and not _steps(checkpoints):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return float(file.read_text()) - begin


def _steps(checkpoints):
    return list(checkpoints.glob("step-*/manifest.json"))


def _after_a_kill(folder):
    _first_step(folder, "--checkpoint_steps=10000")
    return _first_step(folder)
