"""A cluster of several nodes (Ray's processes of each on this machine) that is not ours alone.

Two jobs share it, a node is going to be taken away, a worker takes all the memory.
"""

import json
import os
import signal
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

ZOO = Path(__file__).parent / "zoo"
NUM_RECORDS = 1000

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers") / "numbers.recordio"
    with recordio.Writer(str(path)) as writer:
        for number in range(NUM_RECORDS):
            writer.write(encode({"number": np.int64([number])}))
    return path


@pytest.fixture(scope="module")
def cluster():
    from elasticdl.engines import elastic  # noqa: F401 - sets Ray's environment

    import ray.cluster_utils  # isort: skip

    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def start(cluster, numbers, output, *more):
    command = [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={ZOO}",
        "--model_def=counting", f"--data={numbers}", f"--output={output}", "--minibatch_size=16",
        "--heartbeat_timeout=1", "--join_timeout=0.5", f"--ray_address={cluster.address}", *more,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def told(output):
    path = output / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def training(output):
    """Return the slots that train now."""
    slots = set()
    for event in told(output):
        match event["event"]:
            case "worker_joined":
                slots.add(event["slot"])
            case "worker_left":
                slots.discard(event["slot"])
    return slots


def wait_for(condition, *processes, timeout_s=90):
    deadline = time.monotonic() + timeout_s
    while not condition():
        for process in processes:
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


def reasons(output):
    return Counter(e["reason"] for e in told(output) if e["event"] == "worker_left")


def test_a_low_job_makes_room_for_a_high_one_and_grows_back(cluster, numbers, tmp_path):
    low_output, high_output = tmp_path / "low", tmp_path / "high"
    low = start(
        cluster, numbers, low_output, "--num_workers=1..3", "--num_epochs=40", "--priority=low",
        "--params=pause_s=0.05",
    )  # fmt: skip
    wait_for(lambda: len(training(low_output)) == 3, low)

    high = start(
        cluster, numbers, high_output, "--num_workers=2..2", "--num_epochs=6", "--priority=high",
        "--params=pause_s=0.05",
    )  # fmt: skip
    wait_for(lambda: len(training(high_output)) == 2, low, high)
    assert training(low_output) == {0}
    finish(high)
    wait_for(lambda: len(training(low_output)) == 3, low)
    finish(low)

    assert_each_record_counts(low_output, 40)
    assert_each_record_counts(high_output, 6)
    assert reasons(low_output) == {"makes room for a job of higher priority": 2}
    assert not reasons(high_output)


def test_jobs_of_one_priority_leave_each_other_alone(cluster, numbers, tmp_path):
    first_output, second_output = tmp_path / "first", tmp_path / "second"
    first = start(
        cluster, numbers, first_output, "--num_workers=1..3", "--num_epochs=20",
        "--params=pause_s=0.02",
    )  # fmt: skip
    wait_for(lambda: len(training(first_output)) == 3, first)
    second = start(cluster, numbers, second_output, "--num_workers=1", "--num_epochs=2")

    finish(first)
    finish(second)

    assert not reasons(first_output)
    assert_each_record_counts(second_output, 2)


def test_a_worker_hands_over_before_its_machine_is_taken_away(cluster, numbers, tmp_path):
    import ray

    output = tmp_path / "out"
    process = start(
        cluster, numbers, output, "--num_workers=3", "--num_epochs=1000", "--params=pause_s=0.05"
    )
    wait_for(lambda: len(training(output)) == 3, process)
    cluster.add_node(num_cpus=1)
    goes = cluster.list_all_nodes()[1]

    client = ray._raylet.GcsClient(address=cluster.address)
    preempted = 2
    deadline_ms = int((time.time() + 60) * 1000)
    accepted, why_not = client.drain_node(goes.node_id, preempted, "spot market", deadline_ms)

    assert accepted, why_not
    wait_for(lambda: sum(e["event"] == "worker_joined" for e in told(output)) == 4, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert reasons(output) == {"hands over: its machine is about to go": 1}
    checked = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "job", "audit", str(output)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def test_a_worker_that_takes_all_memory_ends_the_job_and_is_not_started_again(numbers, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    text = (ZOO / "counting.py").read_text()
    text += "\n\nheld = []\ncareful = input_fn\n\n\ndef input_fn(records):\n"
    text += "    held.append(np.ones(10_000_000))\n    return careful(records)\n"
    (zoo / "counting.py").write_text(text)
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + 3e9) / memory.total

    done = subprocess.run(
        [
            sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={zoo}",
            "--model_def=counting", f"--data={numbers}", f"--output={tmp_path / 'out'}",
            "--minibatch_size=16", "--num_epochs=20", "--num_workers=2",
        ],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "RAY_memory_usage_threshold": str(limit),
            "RAY_memory_monitor_refresh_ms": "100",
        },
    )  # fmt: skip

    assert done.returncode == 5, done.stdout
    assert "error: A worker ran out of memory" in done.stdout
    assert "Use a smaller --minibatch_size" in done.stdout
