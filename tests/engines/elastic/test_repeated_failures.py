"""Which deaths end a job."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticdl.engines.elastic.crash_note import BatchInWork, CrashNote
from elasticdl.engines.elastic.repeated_failures import (
    MAX_DEATHS_AT_A_BATCH,
    MAX_ROUNDS_WITHOUT_A_STEP,
    FailureCounter,
    MemoryFailures,
    RepeatedFailure,
)
from elasticdl.errors import TrainingError

BATCH = BatchInWork("computing", 0, 3, 7)


def test_a_batch_that_kills_every_worker_is_reported_once():
    deaths = FailureCounter()

    found = [deaths.count_death([BATCH], step=10) for _ in range(3 * MAX_DEATHS_AT_A_BATCH)]

    assert found[MAX_DEATHS_AT_A_BATCH - 1] == RepeatedFailure(BATCH, MAX_DEATHS_AT_A_BATCH)
    assert [each for each in found if each is not None] == [found[MAX_DEATHS_AT_A_BATCH - 1]]


def test_deaths_at_different_batches_do_not_end_the_job():
    deaths = FailureCounter()

    assert not any(
        deaths.count_death([BatchInWork("making", 0, 0, batch)], step=batch) for batch in range(100)
    )


def test_the_batch_with_most_deaths_is_blamed():
    deaths = FailureCounter()
    ahead = BatchInWork("making", 0, 3, 9)
    for at_the_time in ([ahead, BATCH], [ahead, BATCH], [BATCH], [BATCH]):
        assert deaths.count_death(at_the_time, step=10) is None

    assert deaths.suspects == {(0, 3)}
    assert deaths.count_death([ahead, BATCH], step=10) == RepeatedFailure(
        BATCH, MAX_DEATHS_AT_A_BATCH, (ahead,)
    )


def test_deaths_at_a_validation_shard_count_only_without_new_steps():
    deaths = FailureCounter()
    shard = BatchInWork("evaluating", 0, 0, 0)

    assert not any(deaths.count_death([shard], step=step) for step in range(100))
    found = [deaths.count_death([shard], step=100) for _ in range(MAX_DEATHS_AT_A_BATCH)]
    assert found[-1] == RepeatedFailure(shard, MAX_DEATHS_AT_A_BATCH)


def test_losing_all_workers_without_a_further_step_ends_the_job():
    deaths = FailureCounter()
    for step in range(100):
        deaths.count_total_loss(step)

    with pytest.raises(TrainingError, match="getting past step 99"):
        for _ in range(MAX_ROUNDS_WITHOUT_A_STEP):
            # Each time from an older checkpoint.
            deaths.count_total_loss(50)


def test_a_crash_note_is_read_through_another_mapping(tmp_path):
    mine, other = CrashNote(tmp_path / "note"), CrashNote(tmp_path / "note")

    with mine.working("making", 2, 3, 4):
        with mine.working("computing", 2, 3, 1):
            pass

        assert other.read() == [BatchInWork("making", 2, 3, 4)]


def test_a_suspect_batch_is_not_made_and_computed_concurrently():
    note = CrashNote()
    note.suspects = {(2, 3)}
    with ThreadPoolExecutor() as thread:
        with note.working("making", 2, 3, 4):
            computing = thread.submit(lambda: noted(note, BatchInWork("computing", 2, 3, 1)))
            elsewhere = thread.submit(lambda: noted(note, BatchInWork("computing", 2, 4, 1)))
            assert len(elsewhere.result()) == 2
            assert not computing.done()

        assert computing.result() == [BatchInWork("computing", 2, 3, 1)]


def noted(note, batch):
    """Return what is noted while this is done as well."""
    with note.working(batch.work, batch.epoch, batch.shard, batch.batch):
        return note.read()


def test_running_out_of_memory_repeatedly_ends_the_job():
    losses = MemoryFailures(limit=3)

    assert [losses.count_and_check(checkpoint=10) for _ in range(2)] == [False, False]
    assert [losses.count_and_check(checkpoint=20) for _ in range(3)] == [False, False, True]
