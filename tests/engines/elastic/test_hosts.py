"""Workers on three machines whose links are cut and whose Ray is killed.

The machines are network namespaces (`hosts.py`); where those cannot be made, the tests are skipped
and say so. The driver is on h0, the workers on h1 and h2. The weights of `zoo/counting.py` are
counts: after k epochs each must be exactly k. Each update is written down with its host besides, so
that a worker which goes on by itself is seen even where it changes nothing.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from tests.engines.elastic.hosts import (
    RAY_ENVIRONMENT,
    RAY_PORT,
    NoNamespacesError,
    network_of,
    wait_for,
    wait_for_ray,
)

from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.events import StepCommitted, read_events

ZOO = Path(__file__).parent / "zoo"
NUM_RECORDS = 1000
MINIBATCH_SIZE = 16
NUM_EPOCHS = 10
# More than one host has room for.
NUM_WORKERS = 3
CPUS_OF_A_HOST = 2
# A sum may take a minute; a host that is cut off must not hold the others up so long.
GO_ON_S = 20
# What was on its way when a link was cut has arrived by then.
ON_ITS_WAY_S = 0.5
# Ray takes a host for dead after four seconds.
SHORT_S = 1.5

# Slow, so that it lasts as long as the test needs; quick, as soon as there is a file `hurry`.
WRITES_DOWN_ITS_UPDATES = """

import os
import socket

make_batch, PlainAdd = input_fn, Add


def input_fn(records):
    time.sleep(0 if os.path.exists("{folder}/hurry") else 0.3)
    return make_batch(records)


class Add(PlainAdd):
    def step(self, closure=None):
        super().step()
        with open("{folder}/updates", "a") as updates:
            updates.write(f"{{socket.gethostname()}} {{time.time()}}\\n")
"""

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster():
    """The head, without room for workers, and two hosts."""
    with contextlib.ExitStack() as undo:
        try:
            head, *hosts = undo.enter_context(network_of(3))
        except NoNamespacesError as error:
            pytest.skip(f"cannot make network namespaces: {error}")
        wait_for_ray(head.start_ray(num_cpus=0))
        yield head, hosts


@pytest.fixture
def train(cluster, tmp_path):
    """Begin a training on the whole cluster."""
    head, hosts = cluster
    without_ray = [host for host in hosts if not host.processes("raylet")]
    wait_for_ray(*(h.start_ray(num_cpus=CPUS_OF_A_HOST, head=head) for h in without_ray))
    with contextlib.ExitStack() as undo:

        def begin():
            training = Training(head, hosts, tmp_path)
            undo.callback(training.close)
            return training

        yield begin


def start_anew(host, head):
    """Do what a kubelet does for a host whose Ray has ended."""
    wait_for(lambda: not host.processes("raylet"))
    host.kill()
    wait_for_ray(host.start_ray(num_cpus=CPUS_OF_A_HOST, head=head))


class Training:
    """`elasticdl train` on the cluster.

    Attributes:
        process: The command.
    """

    def __init__(self, head, hosts, folder):
        self._hosts, self._folder, self._output = hosts, folder, folder / "out"
        data, zoo = folder / "numbers.recordio", folder / "zoo"
        with recordio.Writer(str(data)) as writer:
            for number in range(NUM_RECORDS):
                writer.write(encode({"number": np.int64([number])}))
        zoo.mkdir()
        text = (ZOO / "counting.py").read_text() + WRITES_DOWN_ITS_UPDATES.format(folder=folder)
        (zoo / "counting.py").write_text(text)
        command = head.command(
            sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={zoo}",
            "--model_def=counting", f"--data={data}", f"--output={self._output}",
            f"--minibatch_size={MINIBATCH_SIZE}", f"--num_epochs={NUM_EPOCHS}",
            f"--num_workers=1..{NUM_WORKERS}", f"--ray_address={head.address}:{RAY_PORT}",
            "--heartbeat_timeout=1", "--join_timeout=0.5",
        )  # fmt: skip
        self.process = subprocess.Popen(
            command,
            env=os.environ | RAY_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def told(self, *kinds):
        """Return the events of these kinds, so far."""
        path = self._output / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if event["event"] in kinds]

    def updates_of(self, host, since_s):
        """Return when the workers of a host made an update, after a time."""
        lines = (line.split() for line in (self._folder / "updates").read_text().splitlines())
        return [float(at_s) for name, at_s in lines if name == host.name and float(at_s) > since_s]

    def wait_for(self, condition, **timeout):
        def holds():
            assert self.process.poll() is None, self.process.stdout.read()
            return condition()

        wait_for(holds, **timeout)

    def wait_for_all(self):
        """Wait until all workers train; returns slot -> host."""
        since_s = time.time()

        def all_train():
            # What is told now may be of a second ago.
            steps = [e for e in self.told("step_committed") if e["time"] > since_s + 2]
            slots = {slot for event in steps for _, slot, *_ in event["rows"]}
            return len(slots) == len(self._names()) == NUM_WORKERS

        self.wait_for(all_train)
        hosts = {host.name: host for host in self._hosts}
        return {slot: hosts[name] for slot, name in self._names().items()}

    def _names(self):
        names = {}
        for event in self.told("worker_joined", "worker_left"):
            names[event["slot"]] = event.get("host")
        return {slot: name for slot, name in names.items() if name is not None}

    def finish(self):
        """Train to the end without waiting; each record must have counted once an epoch."""
        (self._folder / "hurry").touch()
        text, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, text
        counts = load_file(self._output / "params.safetensors")["counts"]
        np.testing.assert_array_equal(counts, np.full(NUM_RECORDS, NUM_EPOCHS, np.float32))
        batches = Counter(
            (epoch, shard, batch)
            for event in read_events(self._output / "events.jsonl")
            if isinstance(event, StepCommitted)
            for epoch, _, shard, first, stop in event.rows
            for batch in range(first, stop)
        )
        assert set(batches.values()) == {1}
        assert len(batches) == NUM_EPOCHS * -(-NUM_RECORDS // MINIBATCH_SIZE)

    def close(self):
        """End the driver, if it has not ended."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
        self.process.kill()
        self.process.communicate()


def with_one_worker(workers):
    """Return the host with one worker, and the one with the others."""
    num_workers = Counter(workers.values())
    return min(num_workers, key=num_workers.get), max(num_workers, key=num_workers.get)


def test_who_is_cut_off_waits_for_the_others_that_go_on_and_its_host_joins_again(cluster, train):
    head, _ = cluster
    training = train()
    lost, other = with_one_worker(training.wait_for_all())
    joined = training.told("worker_joined")
    pids = [event["pid"] for event in joined if event["host"] == lost.name]

    cut_s = time.time() + ON_ITS_WAY_S
    lost.cut()
    training.wait_for(lambda: training.updates_of(other, cut_s), timeout_s=GO_ON_S)
    training.wait_for(lambda: training.told("worker_left"))
    alone = training.updates_of(lost, cut_s)
    lives = [lost.has(pid) for pid in pids]
    lost.mend()
    start_anew(lost, head)
    hosts = training.wait_for_all()
    training.finish()

    assert alone == []
    assert lives == [True]
    assert lost in hosts.values()


def test_the_others_go_on_when_a_raylet_is_killed_and_its_host_joins_again(cluster, train):
    head, _ = cluster
    training = train()
    hosts = training.wait_for_all()
    lost = hosts[0]
    (other,) = set(hosts.values()) - {lost}

    killed_s = time.time() + ON_ITS_WAY_S
    lost.kill("raylet")
    training.wait_for(lambda: training.updates_of(other, killed_s), timeout_s=GO_ON_S)
    training.wait_for(lambda: training.told("worker_left"))
    start_anew(lost, head)
    hosts = training.wait_for_all()
    training.finish()

    assert lost in hosts.values()


def test_a_short_cut_costs_no_worker_and_in_a_long_one_the_job_can_end(train):
    training = train()
    lost, _ = with_one_worker(training.wait_for_all())

    lost.cut()
    time.sleep(SHORT_S)
    lost.mend()
    training.wait_for_all()
    lost_meanwhile = training.told("worker_left")
    lost.cut()
    training.finish()
    # Whether Ray has given the host up by now or not: the next one starts it anew.
    lost.kill()
    lost.mend()

    assert lost_meanwhile == []
