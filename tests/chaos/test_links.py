"""A storm over three machines: links are cut and healed while workers and their Rays are killed.

The machines are network namespaces (`tests/engines/elastic/hosts.py`); only root can make them.
"""

import contextlib
import os
import random
import signal
import time
from itertools import pairwise

import psutil
import pytest
from tests.chaos.storm import FORKED
from tests.engines.elastic.hosts import NoNamespacesError, network_of, wait_for_ray
from tests.engines.elastic.training import write_numbers
from tests.engines.elastic.training_on_hosts import (
    CPUS_OF_A_HOST,
    GO_ON_S,
    TrainingOnHosts,
    start_anew,
)

# Shorter and longer than it takes Ray to give a host up.
SHORT_S, LONG_S = 2.0, 8.0
FROZEN_S = 6.0
NUM_VALIDATION_RECORDS = 64
# An epoch takes ten seconds while it is slow, and much less than one afterwards.
EPOCHS_A_MINUTE, MIN_EPOCHS = 8, 20

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(0)]


class LinkStorm:
    """What is done to a training on hosts; each strike returns when all train again.

    Args:
        training: It.
        hosts: Where its workers are.
        rng: Decides whom it hits.
    """

    def __init__(self, training, hosts, rng):
        self._training, self._hosts, self._rng = training, hosts, rng
        self.strikes = {
            "short cut": self.cut_for_a_moment,
            "cut and death": self.cut_while_another_dies,
            "long cut": self.cut_for_long,
            "death": self.kill_a_worker,
            "frozen": self.freeze_a_worker,
            "raylet": self.kill_a_raylet,
        }

    def strike(self, name):
        """Do one thing to it, and wait until all workers train."""
        self.strikes[name]()
        self._training.wait_for_all()

    def cut_for_a_moment(self):
        host = self._rng.choice(self._hosts)
        host.cut()
        time.sleep(SHORT_S)
        host.mend()

    def cut_while_another_dies(self):
        host, other = self._rng.sample(self._hosts, 2)
        host.cut()
        self.kill_a_worker(other)
        time.sleep(SHORT_S)
        host.mend()

    def cut_for_long(self):
        host = self._rng.choice(self._hosts)
        num_left = len(self._training.events("worker_left"))
        has_workers = bool(self._training.pids_on(host))
        host.cut()
        if has_workers:
            self._training.wait_for_who_left(num_left)
        time.sleep(LONG_S)
        host.mend()
        start_anew(host, self._training.head)

    def kill_a_worker(self, host=None):
        self._signal(self._worker_on(host), signal.SIGKILL)

    def freeze_a_worker(self):
        worker = self._worker_on(None)
        self._signal(worker, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        self._signal(worker, signal.SIGCONT)

    def kill_a_raylet(self):
        host = self._rng.choice(self._hosts)
        host.kill("raylet")
        start_anew(host, self._training.head)

    def _worker_on(self, host):
        """Return a process that trains, or a spare; None if there is none on this host."""
        hosts = [host] if host is not None else self._hosts
        found = [p for each in hosts for p in each.processes() if _is_a_worker(p)]
        return self._rng.choice(found) if found else None

    @staticmethod
    def _signal(process, number):
        if process is not None and process.is_running():
            os.kill(process.pid, number)


def _is_a_worker(process):
    """Return whether a process was forked from the server of its host."""
    try:
        parent = process.parent()
        return FORKED in process.cmdline() and parent is not None and FORKED in parent.cmdline()
    except psutil.Error:
        return False


def test_a_storm_of_cut_links_and_deaths_counts_each_record_once(tmp_path, chaos_minutes):
    seed = time.time_ns() % 10**6
    print(f"seed {seed}")
    rng = random.Random(seed)
    # A quarter of the time that the storms on one machine have.
    minutes = chaos_minutes / 4
    num_epochs = MIN_EPOCHS + int(minutes * EPOCHS_A_MINUTE)
    # A batch of them takes as long as one of the training, and is no update.
    some = f"--validation_data={write_numbers(tmp_path / 'some.recordio', NUM_VALIDATION_RECORDS)}"
    more = ["--num_spare_workers=1", "--checkpoint_steps=10", "--global_batch_size=32", some]
    with contextlib.ExitStack() as undo:
        try:
            head, *hosts = undo.enter_context(network_of(3))
        except NoNamespacesError as error:
            pytest.skip(f"cannot make network namespaces: {error}")
        wait_for_ray(head.start_ray(num_cpus=0))
        wait_for_ray(*(h.start_ray(num_cpus=CPUS_OF_A_HOST, head=head) for h in hosts))
        training = undo.enter_context(TrainingOnHosts(head, hosts, tmp_path, num_epochs, *more))
        training.wait_for_all()
        began_s, until_s = time.time(), time.monotonic() + minutes * 60
        storm, done = LinkStorm(training, hosts, rng), []
        while time.monotonic() < until_s or len(done) < len(storm.strikes):
            left = [name for name in storm.strikes if name not in done]
            done.append(rng.choice(left or list(storm.strikes)))
            print(f"{time.time():.1f} {done[-1]}", flush=True)
            storm.strike(done[-1])
        times_s = training.times_of_updates(began_s)
        longest_s = max(after - before for before, after in pairwise(times_s))
        print(f"{len(done)} strikes: {done}\nlongest pause: {longest_s:.1f} s")
        training.hurry()

        training.assert_each_record_counts(num_epochs)
    assert longest_s < GO_ON_S
