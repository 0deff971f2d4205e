"""A cluster of several nodes (Ray's processes of each on this machine) that is not ours alone.

Two jobs share it, a node is going to be taken away, a worker takes all the memory.
"""

import time
from unittest.mock import ANY

import psutil
import pytest
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


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


@pytest.fixture
def train(cluster, numbers, tmp_path):
    """Return a training on the cluster, not yet begun."""

    def training(name, *more):
        ours = [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}"]
        return Training(tmp_path / name, [*ours, f"--ray_address={cluster.address}", *more])

    return training


def test_a_low_job_makes_room_for_a_high_one_and_grows_back(train):
    slowly = "--params=pause_s=0.05"
    low = train("low", "--num_workers=1..3", "--num_epochs=1000", "--priority=low", slowly)
    high = train("high", "--num_workers=2..2", "--num_epochs=3", "--priority=high", slowly)
    with low:
        low.wait_for_workers(3)
        with high:
            high.wait_for_workers(2)
            assert set(low.workers()) == {0}
            high.wait_for_the_end()
        low.wait_for_workers(3)
        low.interrupt()
        low.wait_for_the_end(expected=130)

    assert low.audit() == (0, ANY)
    high.assert_each_record_counts(3)
    assert low.reasons() == {"makes room for a job of higher priority": 2}
    assert not high.reasons()


def test_jobs_of_one_priority_leave_each_other_alone(train):
    first = train("first", "--num_workers=1..3", "--num_epochs=1000", "--params=pause_s=0.02")
    second = train("second", "--num_workers=1", "--num_epochs=1")
    with first:
        first.wait_for_workers(3)
        with second:
            second.wait_for(lambda: second.events("job_started"), "the start of the second")
            # It asks for a place, and the first looks for such questions, each second.
            time.sleep(5)
            assert len(first.workers()) == 3
            first.interrupt()
            first.wait_for_the_end(expected=130)
            second.wait_for_the_end()

    assert not first.reasons()
    second.assert_each_record_counts(1)


def test_a_worker_hands_over_before_its_machine_is_taken_away(cluster, train):
    import ray

    goes = next(iter(cluster.worker_nodes))
    with train("out", "--num_workers=3", "--num_epochs=1000", "--params=pause_s=0.05") as training:
        training.wait_for_workers(3)
        cluster.add_node(num_cpus=1)

        client = ray._raylet.GcsClient(address=cluster.address)
        preempted = 2
        deadline_ms = int((time.time() + 60) * 1000)
        accepted, why_not = client.drain_node(goes.node_id, preempted, "spot market", deadline_ms)

        assert accepted, why_not
        training.wait_for(lambda: len(training.events("worker_joined")) == 4, "another worker")
        training.interrupt()
        training.wait_for_the_end(expected=130)
    assert training.reasons() == {"hands over: its machine is about to go": 1}
    assert training.audit() == (0, ANY)


HOARDS = """
held = []
careful = input_fn


def input_fn(records):
    held.append(np.ones(10_000_000))
    return careful(records)
"""


def test_a_worker_that_takes_all_memory_ends_the_job_and_is_not_started_again(numbers, tmp_path):
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
