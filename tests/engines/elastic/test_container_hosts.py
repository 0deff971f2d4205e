"""Workers in containers, of which one is killed, one is cut off and one runs out of memory.

The hosts are containers on a network of their own (`container_hosts.py`), as the pods of a cluster
are; where no engine runs, the tests are skipped and say so. The driver is on h0, a worker on each
of three others, and a host that is lost is replaced by another one, as KubeRay does. The weights of
`zoo/counting.py` are counts: after k epochs each must be exactly k.

It is one training, whose chapters are fixtures; each begins where the one before has ended:

    training -> killed -> cut_off -> out_of_memory -> short_of_memory -> end
"""

import contextlib
import time
from dataclasses import dataclass

import pytest
from tests.cluster.containers import Containers, NoContainersError, import_base
from tests.engines.elastic.container_hosts import HostNetwork
from tests.engines.elastic.training_on_hosts import TrainingOnHosts

pytest.importorskip("docker")

# More than all chapters take at half a second a step; what is left is made in seconds.
NUM_EPOCHS = 12
# What was on its way when a host was lost has arrived by then.
ON_ITS_WAY_S = 0.5
# A worker and its Ray have 600 MB.
MEMORY = "2g"
# A worker takes more than its host has, at once, where the file `take-HOST` says so; where it says
# something else, so slowly that Ray sees it coming.
TAKES_MEMORY = """
writes_down, taken = input_fn, []


def input_fn(records):
    order = "{folder}/take-" + socket.gethostname()
    if os.path.exists(order):
        at_once = open(order).read() == "at once"
        os.remove(order)
        while True:
            taken.append(np.ones(2**32 if at_once else 2**24, np.uint8))
            time.sleep(0.05)
    return writes_down(records)
"""

# A test may be the first to ask for all chapters.
pytestmark = [
    pytest.mark.containers, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)
]  # fmt: skip


# --- the chapters -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """A training, and the hosts that are there for its workers."""

    network: HostNetwork
    hosts: list
    training: TrainingOnHosts

    def wait_until_one_left(self, num_left, since_s):
        """Return when the training says that a worker is lost, and the others train on."""
        self.training.wait_for_who_left(num_left)
        self.training.wait_for(
            lambda: self.training.updates(max(since_s, time.time() - 1)), "updates of the others"
        )

    def wait_for_all(self):
        """Wait until all workers train; returns the hosts that they are on."""
        try:
            return set(self.training.wait_for_all().values())
        except AssertionError as error:
            logs = [f"{host.name}: {host.log()[-1500:]}" for host in self.hosts]
            raise AssertionError("\n".join([str(error), *logs])) from error

    def num_left(self):
        return len(self.training.events("worker_left"))


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A training of three workers, each in a container."""
    folder = tmp_path_factory.mktemp("hosts")
    with contextlib.ExitStack() as undo:
        try:
            containers = undo.enter_context(Containers())
        except NoContainersError as error:
            pytest.skip(str(error))
        import_base(containers.client())
        network = undo.enter_context(HostNetwork(containers.client(), folder))
        # The kernel is to act, and not Ray, which looks four times a second.
        small = network.start(memory=MEMORY, RAY_memory_monitor_refresh_ms="0")
        hosts = [small, network.start(), network.start()]
        training = TrainingOnHosts(
            network.head, hosts, folder, NUM_EPOCHS,
            code=TAKES_MEMORY.format(folder=folder),
            environment=network.environment,
        )  # fmt: skip
        yield Story(network, hosts, undo.enter_context(training))


@dataclass(frozen=True)
class Lost:
    """What became of a host, and where the workers were when all trained again."""

    host: object
    updates_alone: list
    hosts_after: set


@pytest.fixture(scope="module")
def killed(story):
    """The first of the hosts was killed, and another one started."""
    story.wait_for_all()
    lost, num_left = story.hosts[1], story.num_left()

    killed_s = time.time() + ON_ITS_WAY_S
    lost.kill()
    story.wait_until_one_left(num_left, killed_s)
    story.hosts.append(story.network.start(memory=MEMORY))

    return Lost(lost, [], story.wait_for_all())


@pytest.fixture(scope="module")
def cut_off(story, killed):
    """The next one was taken off the network, and another one started."""
    lost, num_left = story.hosts[2], story.num_left()

    cut_s = time.time() + ON_ITS_WAY_S
    lost.cut()
    story.wait_until_one_left(num_left, cut_s)
    story.hosts.append(story.network.start())
    after = story.wait_for_all()
    updates_alone = story.training.updates_of(lost, cut_s)
    lost.stop()

    return Lost(lost, updates_alone, after)


@pytest.fixture(scope="module")
def out_of_memory(story, cut_off):
    """The worker of a small host took more memory than that has, at once."""
    return takes_memory(story, story.hosts[0], "at once")


@pytest.fixture(scope="module")
def short_of_memory(story, out_of_memory):
    """The worker of a small host took all of its memory bit by bit, and Ray ended it."""
    return takes_memory(story, story.hosts[3], "bit by bit")


def takes_memory(story, small, how):
    num_left = story.num_left()
    (story.network.folder / f"take-{small.name}").write_text(how)
    story.training.wait_for_who_left(num_left)
    return Lost(small, [], story.wait_for_all())


@pytest.fixture(scope="module")
def end(story, short_of_memory):
    story.training.hurry()
    return story.training


# --- what is true of them -----------------------------------------------------------------------


def test_a_killed_host_is_replaced_by_another(story, killed):
    assert killed.hosts_after == {story.hosts[0], story.hosts[2], story.hosts[3]}


def test_a_disconnected_host_makes_no_update_and_is_replaced(story, cut_off):
    assert cut_off.updates_alone == []
    assert cut_off.hosts_after == {story.hosts[0], story.hosts[3], story.hosts[4]}


def test_a_worker_killed_by_the_oom_killer_is_replaced_on_its_host(out_of_memory):
    assert out_of_memory.host.num_killed_for_memory() == 1
    assert out_of_memory.host in out_of_memory.hosts_after


def test_a_worker_that_ray_kills_for_its_memory_is_replaced(story, short_of_memory):
    assert short_of_memory.host.num_killed_for_memory() == 0
    assert short_of_memory.host in short_of_memory.hosts_after
    assert story.training.reasons()["ran out of memory"] == 1


def test_a_job_that_lost_four_workers_counts_each_record_once(end):
    end.assert_each_record_counts(NUM_EPOCHS)
    assert sum(end.reasons().values()) == 4, end.reasons()
