"""The driver is killed, and the user's code raises; `tests/chaos/test_storm.py` kills workers.

The weights of `zoo/counting.py` are counts: after k epochs each must be exactly k.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.events import StepCommitted, read_events

ZOO = Path(__file__).parent / "zoo"
NUM_RECORDS = 1000

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "numbers.recordio"
    with recordio.Writer(str(path)) as writer:
        for number in range(NUM_RECORDS):
            writer.write(encode({"number": np.int64([number])}))
    return path


def command(numbers, output, *more, zoo=ZOO):
    return [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={zoo}",
        "--model_def=counting", f"--data={numbers}", f"--output={output}", "--minibatch_size=16",
        "--heartbeat_timeout=1", "--join_timeout=0.5", *more,
    ]  # fmt: skip


def start(arguments):
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )


def told(output):
    path = output / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def workers(output):
    """Return slot -> process of those that train."""
    alive = {}
    for event in told(output):
        match event["event"]:
            case "worker_joined":
                alive[event["slot"]] = event["pid"]
            case "worker_left":
                alive.pop(event["slot"], None)
    return alive


def wait_for(condition, process, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def finish(process):
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 0, text
    return text


def assert_each_record_counts(output, num_epochs):
    counts = load_file(output / "params.safetensors")["counts"]
    np.testing.assert_array_equal(counts, np.full(NUM_RECORDS, num_epochs, np.float32))
    batches = Counter(
        (epoch, shard, batch)
        for event in read_events(output / "events.jsonl")
        if isinstance(event, StepCommitted)
        for epoch, _, shard, first, stop in event.rows
        for batch in range(first, stop)
    )
    assert set(batches.values()) == {1}
    assert len(batches) == num_epochs * -(-NUM_RECORDS // 16)


def test_a_job_whose_driver_was_killed_goes_on(numbers, tmp_path):
    output = tmp_path / "out"
    arguments = command(
        numbers, output, "--num_workers=2", "--params=pause_s=0.01", "--checkpoint_steps=10"
    )
    process = start([*arguments, "--num_epochs=12"])
    wait_for(lambda: any(e["event"] == "checkpointed" for e in told(output)), process)
    pids = set(workers(output).values())
    process.kill()
    process.communicate()

    finish(start([*arguments, "--num_epochs=12"]))

    assert_each_record_counts(output, 12)
    assert not pids & set(psutil.pids())
    starts = [e["resumed_from_step"] for e in told(output) if e["event"] == "job_started"]
    assert starts[0] == 0
    assert starts[1] > 0


def test_an_error_in_the_users_function_ends_the_job_at_once(numbers, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    text = (ZOO / "counting.py").read_text()
    text += "\n\ncareful = input_fn\n\n\ndef input_fn(records):\n"
    text += "    if any(record['number'][0] == 700 for record in records):\n"
    text += "        raise ZeroDivisionError('record 700 is odd')\n    return careful(records)\n"
    (zoo / "counting.py").write_text(text)
    output = tmp_path / "out"

    process = start(command(numbers, output, "--num_workers=2", "--num_epochs=2", zoo=zoo))
    told_text, _ = process.communicate(timeout=120)

    assert process.returncode == 3, told_text
    assert "ZeroDivisionError: record 700 is odd" in told_text
    assert str(zoo / "counting.py") in told_text
    assert "records 0 to 999" in told_text or "records " in told_text
