"""SIGTERM, which Kubernetes and Slurm send, ends an elastic job after a last checkpoint."""

import signal

import pytest
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, write_numbers

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

NUM_EPOCHS = 3
KILLED_BY_SIGTERM = 143


def test_sigterm_ends_a_training_after_a_checkpoint_that_the_same_command_resumes(tmp_path):
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
