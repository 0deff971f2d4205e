"""SIGTERM, which Kubernetes and Slurm send, ends an elastic job after a last checkpoint."""

import signal

import pytest
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers

from elasticdl.errors import TrainingError

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

NUM_EPOCHS = 3
KILLED_BY_SIGTERM = 143


@pytest.mark.exhaustive  # TERMINATED in `tests/chaos/test_storm.py`
def test_sigterm_ends_a_training_with_a_resumable_checkpoint(tmp_path):
    training = Training(
        tmp_path / "out",
        [
            f"--data={write_numbers(tmp_path / 'numbers.recordio')}",
            f"--minibatch_size={MINIBATCH_SIZE}", f"--num_epochs={NUM_EPOCHS}", "--num_workers=2",
            "--params=pause_s=0.02",
        ],
    )  # fmt: skip
    with training:
        training.wait_for_workers(2)
        training.wait_for(lambda: training.events("step_committed"), "a step")

        training._process.send_signal(signal.SIGTERM)
        training.wait_for_the_end(KILLED_BY_SIGTERM)

        assert [event["step"] for event in training.events("checkpointed")][-1] > 0
        training.start()
        training.wait_for_the_end()
    training.assert_each_record_counts(NUM_EPOCHS)


KILLS_ITS_PROCESS = """
import os

make_batch = input_fn


def input_fn(records):
    if any(record["number"][0] == 500 for record in records):
        os.kill(os.getpid(), 9)
    return make_batch(records)
"""


@pytest.mark.exhaustive  # The first half of a test in `test_bad_records.py`.
def test_a_record_that_kills_every_worker_ends_the_job_and_is_named(tmp_path):
    training = Training(
        tmp_path / "out",
        [
            f"--data={write_numbers(tmp_path / 'numbers.recordio')}",
            f"--minibatch_size={MINIBATCH_SIZE}", "--num_workers=2", "--no-shuffle",
        ],
        model=counting_and(tmp_path, KILLS_ITS_PROCESS),
    )  # fmt: skip
    with training:
        training.wait_for_the_end(TrainingError.exit_code)

    # The 500th record is in the 32nd batch of 16, the last of the first shard.
    assert "died while making epoch 1, shard 0, batch 31" in training.log()
