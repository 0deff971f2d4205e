"""A training that is killed and started again ends with the bits of one that was not."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.data import recordio
from elasticdl.data.example import encode

ZOO = Path(__file__).parent / "zoo"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    rng = np.random.default_rng(1)
    for part in range(3):
        with recordio.Writer(str(folder / f"part-{part}.recordio")) as writer:
            for _ in range(150):
                image = rng.uniform(0, 255, (28, 28)).astype("float32")
                label = np.int64([int(image.mean()) % 10])
                writer.write(encode({"image": image, "label": label}))
    return folder


def command(model, data, output, num_epochs):
    return [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={ZOO}",
        f"--model_def={model}", f"--data={data}/*.recordio", f"--output={output}",
        f"--num_epochs={num_epochs}", "--minibatch_size=16", "--checkpoint_steps=15", "--seed=7",
    ]  # fmt: skip


def finish(arguments):
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def kill_at(arguments, output, moment, rng):
    """Start a run and kill it: soon after it made a checkpoint, or while it makes one."""
    checkpoints = output / "checkpoints"
    before = names_in(checkpoints)
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and names_in(checkpoints) <= before:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.5))
    if moment == "while saving":
        while process.poll() is None and not any(
            name.startswith(".step") for name in names_in(checkpoints)
        ):
            pass
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def names_in(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def history(output):
    return [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]


def steps_done_twice(output):
    """Count the steps an attempt made past the one the next attempt began from."""
    twice, reached = 0, 0
    for event in history(output):
        if event["event"] == "job_started":
            twice += max(0, reached - event["resumed_from_step"])
            reached = event["resumed_from_step"]
        else:
            reached = max(reached, event.get("step", 0))
    return twice


def final_state(output):
    """Return weights, statistics and optimizer slots of the last checkpoint."""
    last = CheckpointStore(OutputFolder(output)).latest().checkpoint
    return last.state, last.metadata


def assert_same_bits(output, expected):
    state, metadata = final_state(output)
    expected_state, expected_metadata = final_state(expected)
    assert state.keys() == expected_state.keys()
    differing = [p for p in state if state[p].tobytes() != expected_state[p].tobytes()]
    assert not differing
    assert metadata["progress"] == expected_metadata["progress"]
    assert metadata["hooks"] == expected_metadata["hooks"]


def storm(model, digits, tmp_path, num_kills, num_epochs):
    rng = random.Random(num_kills)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    finish(command(model, digits, undisturbed, num_epochs))
    arguments = command(model, digits, killed, num_epochs)
    moments = ["while saving", "any time"]
    kills = sum(kill_at(arguments, killed, moments[i % 2], rng) for i in range(num_kills))
    finish(arguments)

    assert_same_bits(killed, undisturbed)
    assert kills >= num_kills - 1, "The training was over before it could be killed."
    resumed = [e["resumed_from_step"] for e in history(killed) if e["event"] == "job_started"]
    assert any(resumed), "No attempt went on from a checkpoint."
    assert steps_done_twice(killed) > 0, "Nothing was replayed, so nothing was tested."


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "model",
    ["noisy_module", pytest.param("noisy_spec.NoisySpec", marks=pytest.mark.chaos)],
)
@pytest.mark.exhaustive
def test_three_kills_leave_no_trace(model, digits, tmp_path):
    storm(model, digits, tmp_path, num_kills=3, num_epochs=24)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["noisy_module", "noisy_spec.NoisySpec"])
def test_twenty_kills_leave_no_trace(model, digits, tmp_path):
    storm(model, digits, tmp_path, num_kills=20, num_epochs=400)


@pytest.mark.exhaustive  # tests/parity kills `early_stopping_restore` after its best epoch.
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_best_weights_from_before_a_kill_are_restored(digits, tmp_path):
    storm("stopping_module", digits, tmp_path, num_kills=2, num_epochs=3)

    killed, whole = (
        dict(load_trained_model(str(tmp_path / name)).params) for name in ("killed", "undisturbed")
    )
    assert [path for path in whole if killed[path].tobytes() != whole[path].tobytes()] == []
    state, _ = final_state(tmp_path / "killed")
    kernel = next(path for path in whole if path.endswith("kernel"))
    assert not np.array_equal(state[f"model/{kernel}"], whole[kernel])
