"""Which deaths end a job."""

import pytest

from elasticdl.engines.elastic.crash_note import BatchInWork, CrashNote
from elasticdl.engines.elastic.deaths import (
    MAX_DEATHS_AT_A_BATCH,
    MAX_ROUNDS_WITHOUT_A_STEP,
    Deaths,
)
from elasticdl.errors import TrainingError

BATCH = BatchInWork("computing", 0, 3, 7)


def test_a_batch_that_kills_every_worker_ends_the_job():
    deaths = Deaths()
    for _ in range(MAX_DEATHS_AT_A_BATCH - 1):
        deaths.at([BATCH], step=10)

    with pytest.raises(TrainingError, match="computing epoch 1, shard 3, batch 7"):
        deaths.at([BATCH], step=20)


def test_deaths_at_different_batches_end_nothing():
    deaths = Deaths()
    for batch in range(100):
        deaths.at([BatchInWork("making", 0, 0, batch)], step=batch)


def test_a_validation_shard_counts_only_while_no_step_is_made():
    deaths = Deaths()
    for step in range(100):
        deaths.at([BatchInWork("evaluating", 0, 0, 0)], step=step)

    with pytest.raises(TrainingError, match="evaluating shard 0 of the validation data"):
        for _ in range(MAX_DEATHS_AT_A_BATCH):
            deaths.at([BatchInWork("evaluating", 0, 0, 0)], step=100)


def test_losing_all_workers_without_a_further_step_ends_the_job():
    deaths = Deaths()
    for step in range(100):
        deaths.of_all(step)

    with pytest.raises(TrainingError, match="further than step 99"):
        for _ in range(MAX_ROUNDS_WITHOUT_A_STEP):
            # Each time from an older checkpoint.
            deaths.of_all(50)


def test_a_note_is_read_through_another_mapping(tmp_path):
    mine, other = CrashNote(tmp_path / "note"), CrashNote(tmp_path / "note")

    mine.working("making", 2, 3, 4)
    mine.working("computing", 2, 3, 1)
    mine.done("computing")

    assert other.read() == [BatchInWork("making", 2, 3, 4)]
