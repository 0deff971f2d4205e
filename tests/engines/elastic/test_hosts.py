"""Workers on three machines whose links are cut and whose Ray is killed.

The machines are network namespaces (`hosts.py`); where those cannot be made, the tests are skipped
and say so. The driver is on h0, the workers on h1 and h2. The weights of `zoo/counting.py` are
counts: after k epochs each must be exactly k. Each update is written down with its host besides, so
that a worker which goes on by itself is seen even where it changes nothing.
"""

import contextlib
import time
from collections import Counter

import pytest
from tests.engines.elastic.hosts import (
    RAY_ENVIRONMENT,
    RAY_PORT,
    NoNamespacesError,
    network_of,
    wait_for,
    wait_for_ray,
)
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers

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
    """Return a training on the whole cluster, not yet begun."""
    head, hosts = cluster
    without_ray = [host for host in hosts if not host.processes("raylet")]
    wait_for_ray(*(h.start_ray(num_cpus=CPUS_OF_A_HOST, head=head) for h in without_ray))
    return TrainingOnHosts(head, hosts, tmp_path)


def start_anew(host, head):
    """Do what a kubelet does for a host whose Ray has ended."""
    wait_for(lambda: not host.processes("raylet"))
    host.kill()
    wait_for_ray(host.start_ray(num_cpus=CPUS_OF_A_HOST, head=head))


class TrainingOnHosts(Training):
    """`elasticdl train` on the head, with its workers on the other hosts."""

    def __init__(self, head, hosts, folder):
        self._hosts, self._folder = hosts, folder
        super().__init__(
            folder / "out",
            [
                f"--data={write_numbers(folder / 'numbers.recordio')}",
                f"--minibatch_size={MINIBATCH_SIZE}", f"--num_epochs={NUM_EPOCHS}",
                f"--num_workers=1..{NUM_WORKERS}", f"--ray_address={head.address}:{RAY_PORT}",
            ],
            model=counting_and(folder, WRITES_DOWN_ITS_UPDATES.format(folder=folder)),
            run_by=head.command(),
            environment=RAY_ENVIRONMENT,
        )  # fmt: skip

    def updates_of(self, host, since_s):
        """Return when the workers of a host made an update, after a time."""
        lines = (line.split() for line in (self._folder / "updates").read_text().splitlines())
        return [float(at_s) for name, at_s in lines if name == host.name and float(at_s) > since_s]

    def wait_for_updates_of(self, host, since_s):
        """Return when a worker of a host has made an update after a time."""
        self.wait_for(
            lambda: self.updates_of(host, since_s), f"updates of {host.name}", timeout_s=GO_ON_S
        )

    def wait_for_all(self):
        """Wait until all workers train; returns slot -> host."""
        since_s = time.time()

        def all_train():
            # What is told now may be of a second ago.
            steps = [e for e in self.events("step_committed") if e["time"] > since_s + 2]
            slots = {slot for event in steps for _, slot, *_ in event["rows"]}
            return len(slots) == len(self._names()) == NUM_WORKERS

        self.wait_for(all_train, "steps of all workers")
        hosts = {host.name: host for host in self._hosts}
        return {slot: hosts[name] for slot, name in self._names().items()}

    def _names(self):
        names = {}
        for event in self.events("worker_joined", "worker_left"):
            names[event["slot"]] = event.get("host")
        return {slot: name for slot, name in names.items() if name is not None}

    def finish(self):
        """Train to the end without waiting; each record must have counted once an epoch."""
        (self._folder / "hurry").touch()
        self.wait_for_the_end()
        self.assert_each_record_counts(NUM_EPOCHS)


def with_one_worker(workers):
    """Return the host with one worker, and the one with the others."""
    num_workers = Counter(workers.values())
    return min(num_workers, key=num_workers.get), max(num_workers, key=num_workers.get)


def test_who_is_cut_off_waits_for_the_others_that_go_on_and_its_host_joins_again(cluster, train):
    head, _ = cluster
    with train as training:
        lost, other = with_one_worker(training.wait_for_all())
        joined = training.events("worker_joined")
        pids = [event["pid"] for event in joined if event["host"] == lost.name]

        cut_s = time.time() + ON_ITS_WAY_S
        lost.cut()
        training.wait_for_updates_of(other, cut_s)
        training.wait_for(lambda: training.events("worker_left"), "who left")
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
    with train as training:
        hosts = training.wait_for_all()
        lost = hosts[0]
        (other,) = set(hosts.values()) - {lost}

        killed_s = time.time() + ON_ITS_WAY_S
        lost.kill("raylet")
        training.wait_for_updates_of(other, killed_s)
        training.wait_for(lambda: training.events("worker_left"), "who left")
        start_anew(lost, head)
        hosts = training.wait_for_all()
        training.finish()

    assert lost in hosts.values()


def test_a_short_cut_costs_no_worker_and_in_a_long_one_the_job_can_end(train):
    with train as training:
        lost, _ = with_one_worker(training.wait_for_all())

        lost.cut()
        time.sleep(SHORT_S)
        lost.mend()
        training.wait_for_all()
        lost_meanwhile = training.events("worker_left")
        lost.cut()
        training.finish()
        # Whether Ray has given the host up by now or not: the next one starts it anew.
        lost.kill()
        lost.mend()

    assert lost_meanwhile == []
