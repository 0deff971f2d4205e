"""Workers on three machines whose links are cut and whose Ray is killed.

The machines are network namespaces (`hosts.py`); where those cannot be made, the tests are skipped
and say so. The driver is on h0, the workers on h1 and h2. The weights of `zoo/counting.py` are
counts: after k epochs each must be exactly k. Each update is written down with its worker besides,
so that a worker which goes on by itself is seen even where it changes nothing.

It is one training, whose chapters are fixtures; each begins where the one before has ended:

    training -> short_cut -> cut -> killed_raylet -> end
"""

import contextlib
import time
from collections import Counter
from dataclasses import dataclass

import pytest
from tests.engines.elastic.hosts import NoNamespacesError, network_of, wait_for_ray
from tests.engines.elastic.training_on_hosts import (
    CPUS_OF_A_HOST,
    TrainingOnHosts,
    start_anew,
)

# More than all chapters take at half a second a step; what is left is made in seconds.
NUM_EPOCHS = 20
# What was on its way when a link was cut has arrived by then.
ON_ITS_WAY_S = 0.5
# Ray takes a host for dead after four and a half seconds.
SHORT_S, NOTICED_S = 1.5, 5.0

# A test may be the first to ask for all chapters.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def with_one_worker(workers):
    """Return the host with one worker, and the one with the others."""
    num_workers = Counter(workers.values())
    return min(num_workers, key=num_workers.get), max(num_workers, key=num_workers.get)


# --- the chapters -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A training of three workers on two hosts; the head has no room for any."""
    with contextlib.ExitStack() as undo:
        try:
            head, *hosts = undo.enter_context(network_of(3))
        except NoNamespacesError as error:
            pytest.skip(f"cannot make network namespaces: {error}")
        wait_for_ray(head.start_ray(num_cpus=0))
        wait_for_ray(*(h.start_ray(num_cpus=CPUS_OF_A_HOST, head=head) for h in hosts))
        folder = tmp_path_factory.mktemp("hosts")
        yield undo.enter_context(TrainingOnHosts(head, hosts, folder, NUM_EPOCHS))


@dataclass(frozen=True)
class ShortCut:
    """The link of a host was cut for less than it takes Ray to notice."""

    left: list


@pytest.fixture(scope="module")
def short_cut(training):
    lost, _ = with_one_worker(training.wait_for_all())

    noticed_s = time.monotonic() + NOTICED_S
    lost.cut()
    time.sleep(SHORT_S)
    lost.mend()
    training.wait_for_all()
    # Had it cost a worker after all, Ray would say so by then.
    time.sleep(max(0, noticed_s - time.monotonic()))

    return ShortCut(training.events("worker_left"))


@dataclass(frozen=True)
class Cut:
    """The link of a host was cut until Ray gave it up; then it was started anew."""

    host: object
    updates_alone: list
    lived_on: list
    hosts_after: dict


@pytest.fixture(scope="module")
def cut(training, short_cut):
    lost, other = with_one_worker(training.wait_for_all())
    pids, num_left = training.pids_on(lost), len(training.events("worker_left"))

    cut_s = time.time() + ON_ITS_WAY_S
    lost.cut()
    training.wait_for_updates_of(other, cut_s)
    training.wait_for_who_left(num_left)
    alone = training.updates_of(lost, cut_s)
    lived_on = [lost.has(pid) for pid in pids]
    lost.mend()
    start_anew(lost, training.head)

    return Cut(lost, alone, lived_on, training.wait_for_all())


@dataclass(frozen=True)
class KilledRaylet:
    """Ray was killed on the host of rank 0, and started anew."""

    host: object
    hosts_after: dict


@pytest.fixture(scope="module")
def killed_raylet(training, cut):
    hosts, num_left = training.wait_for_all(), len(training.events("worker_left"))
    lost = hosts[0]
    (other,) = set(hosts.values()) - {lost}

    killed_s = time.time() + ON_ITS_WAY_S
    lost.kill("raylet")
    training.wait_for_updates_of(other, killed_s)
    training.wait_for_who_left(num_left)
    start_anew(lost, training.head)

    return KilledRaylet(lost, training.wait_for_all())


@pytest.fixture(scope="module")
def end(training, killed_raylet):
    """It came to its end while a host was cut off."""
    lost, _ = with_one_worker(training.wait_for_all())

    lost.cut()
    training.hurry()

    return training


# --- what is true of them -----------------------------------------------------------------------


def test_a_short_network_outage_costs_no_worker(short_cut):
    assert short_cut.left == []


def test_a_disconnected_host_waits_and_rejoins(cut):
    assert cut.updates_alone == []
    assert cut.lived_on == [True]
    assert cut.host in cut.hosts_after.values()


# Of a host whose link is cut as well, the others hear that it is gone, and it is started anew.
@pytest.mark.exhaustive
def test_a_host_rejoins_after_its_raylet_was_killed(killed_raylet):
    assert killed_raylet.host in killed_raylet.hosts_after.values()


@pytest.mark.exhaustive
def test_a_job_can_finish_during_a_long_network_outage(end):
    end.assert_each_record_counts(NUM_EPOCHS)
