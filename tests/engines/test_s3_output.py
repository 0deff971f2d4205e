"""A training whose output is on S3, and whose driver dies or sleeps: another machine goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.remote_storage import MANIFEST
from elasticdl.data import recordio
from elasticdl.data.example import encode

ZOO = Path(__file__).parent / "elastic" / "zoo"
NUM_RECORDS, NUM_EPOCHS = 1000, 2
LEASE_S = 3.0

# The command, on a machine of another name, with shorter leases.
ELSEWHERE = (
    "import socket, sys\n"
    "host = sys.argv.pop(1)\n"
    "socket.gethostname = lambda: host\n"
    "from elasticdl.artifacts import output_lease\n"
    f"output_lease.LEASE_S = {LEASE_S}\n"
    "from elasticdl.cli.main import main\n"
    "main(sys.argv[1:])\n"
)


@pytest.fixture
def output(s3) -> OutputFolder:
    return OutputFolder(f"s3://honest/{uuid.uuid4().hex}/model")


@pytest.fixture
def train(output, tmp_path):
    """Return a function that starts the training on a machine of a name."""
    data = tmp_path / "numbers.recordio"
    with recordio.Writer(str(data)) as writer:
        for number in range(NUM_RECORDS):
            writer.write(encode({"number": np.int64([number])}))
    started = []

    def start(host: str, *more: str) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-c", ELSEWHERE, host, "train", f"--model_zoo={ZOO}",
            "--model_def=counting", "--params=pause_s=0.05", f"--data={data}",
            f"--output={output.uri}", f"--num_epochs={NUM_EPOCHS}", "--minibatch_size=16",
            "--checkpoint_steps=5", "--shuffle", *more,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for_checkpoints(output: OutputFolder, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while sum("step" in name for name in output.list("checkpoints")) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def newest_checkpoint(output: OutputFolder) -> tuple[int, bytes]:
    """Return the step a resumption begins with, and the checkpoint's list of hashes."""
    step = CheckpointStore(output).latest().checkpoint.step
    return step, output.read_bytes(f"checkpoints/step-{step:010d}/{MANIFEST}")


def assert_each_record_counted_once_an_epoch(output: OutputFolder) -> None:
    (counts,) = load(output.read_bytes("params.safetensors")).values()
    np.testing.assert_array_equal(counts, np.full(NUM_RECORDS, NUM_EPOCHS))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "more",
    [
        # Where the first one sleeps, below, the second does the same.
        pytest.param((), marks=pytest.mark.exhaustive),
        pytest.param(("--num_workers=2",), marks=pytest.mark.ray),
    ],
    ids=["alone", "workers"],
)
def test_the_same_command_resumes_elsewhere_after_a_kill(train, output, more) -> None:
    first = train("north", *more)
    wait_for_checkpoints(output, first)
    first.kill()

    second = train("south", *more)
    printed, _ = second.communicate(timeout=110)

    assert second.returncode == 0, printed
    assert f"Its lease expires if it is not renewed within {LEASE_S:.0f} s" in printed
    assert_each_record_counted_once_an_epoch(output)


@pytest.mark.slow
def test_a_replaced_driver_exits_with_6_without_changes(train, output) -> None:
    first = train("north")
    wait_for_checkpoints(output, first)
    first.send_signal(signal.SIGSTOP)
    second = train("south")
    printed, _ = second.communicate(timeout=110)
    assert second.returncode == 0, printed
    before = {name: output.read_bytes(name) for name in ("params.safetensors", "events.jsonl")}
    checkpoint = newest_checkpoint(output)

    first.send_signal(signal.SIGCONT)
    printed, _ = first.communicate(timeout=60)

    assert first.returncode == 6, printed
    assert f"process {second.pid} on south" in printed
    assert {name: output.read_bytes(name) for name in before} == before
    # An upload it fell asleep in may still leave an old checkpoint, which nobody takes.
    assert newest_checkpoint(output) == checkpoint
    assert_each_record_counted_once_an_epoch(output)
