"""A record kills every process that reads it, or that computes on it."""

from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.engines.elastic.training import (
    MINIBATCH_SIZE,
    NUM_RECORDS,
    Training,
    counting_and,
    write_numbers,
)

import elasticdl
from elasticdl.engines.progress_bar import Silent

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

KILLS_WHO_READS = """
import os

careful = input_fn


def input_fn(records, pause_s=0.0):
    if any(record["number"][0] == 700 for record in records):
        os.kill(os.getpid(), 9)
    return careful(records, pause_s)
"""

# In the second epoch, that is.
KILLS_WHO_COMPUTES_ON_WHAT_WAS_TRAINED_ON_BEFORE = """
import os

mean = loss


def loss(output, labels):
    if ((labels.reshape(-1) == 700) & (output.reshape(-1) >= 1)).any():
        os.kill(os.getpid(), 9)
    return mean(output, labels)
"""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


def arguments(numbers, *more):
    return [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}", *more]


def assert_left_out(training, *, from_epoch, num_epochs):
    """Assert it by the events, the weights and the audit."""
    (records,) = {tuple(event["records"]) for event in training.events("records_skipped")}
    assert 700 in records
    assert len(records) == MINIBATCH_SIZE
    expected = np.full(NUM_RECORDS, num_epochs, np.float32)
    expected[list(records)] = from_epoch
    counts = load_file(training.output / "params.safetensors")["counts"]
    np.testing.assert_array_equal(counts, expected)
    code, report = training.audit()
    assert (code, report["wrong"]) == (0, []), report
    (left_out,) = report["left_out"]
    assert left_out["epoch"] == from_epoch
    assert [place["number"] for place in left_out["records"]] == list(records)
    num_left_out = [0] * from_epoch + [len(records)] * (num_epochs - from_epoch)
    assert [epoch["left_out_records"] for epoch in report["epochs"]] == num_left_out
    trained = [epoch["trained_records"] for epoch in report["epochs"]]
    assert trained == [NUM_RECORDS - num for num in num_left_out]


def test_records_that_kill_workers_end_the_job_or_are_skipped(numbers, tmp_path):
    model = counting_and(tmp_path, KILLS_WHO_READS)
    given = arguments(numbers, "--num_workers=2", "--num_epochs=2", "--no-shuffle")

    with Training(tmp_path / "out", given, model=model) as training:
        training.wait_for_the_end(expected=5)
    said = training.log()
    # The 44th batch of 16: the first shard has 32.
    place = f"epoch 1, shard 1, batch 11, {numbers}, records 688 to 703."
    assert f"died while making {place}" in said
    assert "--skip_bad_records" in said

    with Training(tmp_path / "out", [*given, "--skip_bad_records"], model=model) as training:
        training.wait_for_the_end()
    assert "These records are left out from now on" in training.log()
    assert_left_out(training, from_epoch=0, num_epochs=2)


@pytest.mark.exhaustive
def test_skipped_records_stay_skipped_after_a_kill_of_the_driver(numbers, tmp_path):
    model = counting_and(tmp_path, KILLS_WHO_COMPUTES_ON_WHAT_WAS_TRAINED_ON_BEFORE)
    given = arguments(
        numbers, "--num_workers=2", "--num_epochs=3", "--skip_bad_records",
        f"--global_batch_size={4 * MINIBATCH_SIZE}", "--checkpoint_steps=5",
        "--params=pause_s=0.05",
    )  # fmt: skip

    with Training(tmp_path / "out", given, model=model) as training:
        training.wait_for(
            lambda: any(
                (first["event"], second["event"]) == ("records_skipped", "checkpointed")
                for first, second in pairwise(training.events("records_skipped", "checkpointed"))
            ),
            "a checkpoint without the records",
        )
        training.kill()
        training.start()
        training.wait_for_the_end()

    assert_left_out(training, from_epoch=1, num_epochs=3)
    # Not found out once more, by the deaths of five other workers.
    assert training.log().count("left out from now on") == 1

    elasticdl.train(
        model_zoo=str(model.parent), model_def=model.stem, data=str(numbers),
        output=str(training.output), minibatch_size=MINIBATCH_SIZE,
        global_batch_size=4 * MINIBATCH_SIZE, params="pause_s=0.05", num_epochs=4,
        reporter=Silent(),
    )  # fmt: skip

    assert_left_out(training, from_epoch=1, num_epochs=4)
