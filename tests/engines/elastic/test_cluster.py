"""A cluster of several nodes (Ray's processes of each on this machine) that is not ours alone.

Two jobs share it, a node is going to be taken away, a worker takes all the memory.

What happens on the cluster is one story, whose chapters are fixtures; each begins where the one
before has ended:

    neighbours   a job has all three places; another one waits, and has them after it
    high_job     one of higher priority comes and goes
    drained      one of the nodes is going to be taken away
    end          the job is interrupted, after the last chapter that a test asks for
"""

import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from unittest.mock import ANY

import psutil
import pytest
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers

# A test may be the first to ask for all chapters.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

# So that it lasts until it is interrupted.
WITHOUT_END = ["--num_epochs=1000", "--params=pause_s=0.05"]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


@pytest.fixture(scope="module")
def cluster():
    from elasticdl.engines import elastic  # noqa: F401 - sets Ray's environment

    import ray.cluster_utils  # isort: skip

    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def train(cluster, numbers, tmp_path_factory):
    """Return a training on the cluster, not yet begun."""
    folder = tmp_path_factory.mktemp("jobs")

    def training(name, *more):
        ours = [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}"]
        return Training(folder / name, [*ours, f"--ray_address={cluster.address}", *more])

    return training


# --- the chapters -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbours:
    """Two jobs of one priority."""

    first: Training
    second: Training
    num_workers_of_first: int
    reasons_of_first: Counter


@pytest.fixture(scope="module")
def neighbours(train):
    low = ["--num_workers=1..3", "--priority=low", *WITHOUT_END]
    first, second = train("first", *low), train("second", *low)
    with contextlib.ExitStack() as undo:
        undo.enter_context(first)
        first.wait_for_workers(3)
        undo.enter_context(second)
        second.wait_for(lambda: second.events("job_started"), "the start of the second")
        # After two seconds without a place it says so, and the first looks for that each second:
        # on a quiet machine it has heard of it after five.
        time.sleep(8)
        num_workers = len(first.workers())
        first.interrupt()
        first.wait_for_the_end(expected=130)
        second.wait_for_workers(3)
        yield Neighbours(first, second, num_workers, first.reasons())


@dataclass(frozen=True)
class HighJob:
    """A job of high priority beside one of low priority, which has no more than one worker then."""

    low: Training
    high: Training
    workers_of_low: set
    reasons_of_low: Counter


@pytest.fixture(scope="module")
def high_job(train, neighbours):
    low = neighbours.second
    high = train(
        "high", "--num_workers=2..2", "--priority=high", "--num_epochs=1", "--params=pause_s=0.05"
    )
    with high:
        high.wait_for_workers(2)
        workers_of_low = set(low.workers())
        high.wait_for_the_end()
    low.wait_for_workers(3)
    return HighJob(low, high, workers_of_low, low.reasons())


@pytest.fixture(scope="module")
def drained(cluster, high_job):
    """A place that a worker of the job had is gone, and it has another one."""
    import ray

    low = high_job.low
    goes = next(iter(cluster.worker_nodes))
    num_joined = len(low.events("worker_joined"))
    cluster.add_node(num_cpus=1)

    client = ray._raylet.GcsClient(address=cluster.address)
    preempted = 2
    deadline_ms = int((time.time() + 60) * 1000)
    accepted, why_not = client.drain_node(goes.node_id, preempted, "spot market", deadline_ms)

    assert accepted, why_not
    low.wait_for(lambda: len(low.events("worker_joined")) > num_joined, "another worker")


@pytest.fixture(scope="module")
def end(high_job, request):
    """Return the job, and why workers of it left since the job of high priority."""
    beside = [item for item in request.session.items if item.path == request.path]
    if any("drained" in item.fixturenames for item in beside):
        request.getfixturevalue("drained")
    low = high_job.low
    low.interrupt()
    low.wait_for_the_end(expected=130)
    return low, low.reasons() - high_job.reasons_of_low


# --- what is true of them -----------------------------------------------------------------------


def test_jobs_of_equal_priority_do_not_preempt_each_other(neighbours):
    assert neighbours.num_workers_of_first == 3
    assert not neighbours.reasons_of_first


def test_a_low_priority_job_makes_room_and_grows_back(high_job):
    assert high_job.workers_of_low == {0}
    assert high_job.reasons_of_low == {"was preempted by a job with higher priority": 2}
    assert not high_job.high.reasons()
    high_job.high.assert_each_record_counts(1)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("drained")
def test_a_worker_hands_over_before_its_machine_is_reclaimed(end):
    _, reasons = end

    assert reasons == {"was stopped: its machine will be reclaimed": 1}


def test_each_record_counts_once_despite_preemption(end):
    job, _ = end

    assert job.audit() == (0, ANY)


# --- memory -------------------------------------------------------------------------------------


HOARDS = """
held = []
careful = input_fn


def input_fn(records):
    held.append(np.ones(10_000_000))
    return careful(records)
"""


@pytest.mark.exhaustive
def test_running_out_of_memory_ends_the_job_without_a_restart(numbers, tmp_path):
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + 3e9) / memory.total

    with Training(
        tmp_path / "out",
        [f"--data={numbers}", "--minibatch_size=16", "--num_epochs=20", "--num_workers=2"],
        model=counting_and(tmp_path, HOARDS),
        environment={
            "RAY_memory_usage_threshold": str(limit),
            "RAY_memory_monitor_refresh_ms": "100",
        },
    ) as training:
        training.wait_for_the_end(expected=5)

    assert "error: A worker ran out of memory" in training.log()
    assert "Use a smaller --minibatch_size" in training.log()
