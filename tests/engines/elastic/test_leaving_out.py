"""Which records may be left out, and what is said of those that may not."""

from types import SimpleNamespace

import pytest
from tests.cli.test_job import PIPELINE
from tests.engines.conftest import MODEL, write_records

from elasticdl import job_options
from elasticdl.artifacts.checkpoint_store import Checkpoint
from elasticdl.engines.elastic.bad_records import BadRecords
from elasticdl.engines.elastic.controller import _timeouts_of
from elasticdl.engines.elastic.crash_note import BatchInWork
from elasticdl.engines.elastic.repeated_failures import RepeatedFailure
from elasticdl.engines.elastic.worker import Assignment, Worker
from elasticdl.engines.training_context import open_context
from elasticdl.errors import TrainingError, UsageError
from elasticdl.job import Workers
from elasticdl.sharding.ledger import ShardLease
from elasticdl.sharding.left_out import BatchId


@pytest.fixture
def run_of(tmp_path):
    """Return a run on 300 records, ten in a minibatch, in the order they are stored."""

    def run(model=MODEL):
        (tmp_path / "zoo").mkdir()
        (tmp_path / "zoo" / "small.py").write_text(model)
        (tmp_path / "data").mkdir()
        write_records(tmp_path / "data" / "a.recordio", 300)
        job = job_options.training_job(
            model_zoo=str(tmp_path / "zoo"),
            model_def="small",
            data=str(tmp_path / "data"),
            validation_data=str(tmp_path / "data"),
            output=str(tmp_path / "out"),
            minibatch_size=10,
            shuffle=False,
            num_workers=2,
        )
        notes = []
        reporter = SimpleNamespace(note=notes.append)
        return SimpleNamespace(context=open_context(job)[0], reporter=reporter, notes=notes)

    return run


def died(work, batch, shard=0):
    return RepeatedFailure(BatchInWork(work, 0, shard, batch), 5)


def test_records_that_kill_are_named_with_advice(run_of, tmp_path):
    bad = BadRecords(run_of(), skip=False)

    with pytest.raises(TrainingError) as raised:
        bad.add(died("computing", 3))

    assert str(raised.value).startswith(
        "5 workers died while computing epoch 1, shard 0, batch 3, "
        f"{tmp_path}/data/a.recordio, records 30 to 39. "
    )
    assert "--skip_bad_records" in str(raised.value)


@pytest.mark.parametrize("skip", [True, False])
def test_validation_records_that_kill_are_named_and_not_skipped(run_of, tmp_path, skip):
    bad = BadRecords(run_of(), skip=skip)

    with pytest.raises(TrainingError, match=r"a\.recordio, records 80 to 159\.") as raised:
        bad.add(died("evaluating", 0, shard=1))

    assert "--skip_bad_records" not in str(raised.value)


def test_a_model_that_dies_at_every_batch_skips_a_limited_share(run_of):
    run = run_of()
    bad = BadRecords(run, skip=True)

    for batch in range(10):
        assert bad.add(died("making", batch)) == BatchId(0, 0, batch)
    with pytest.raises(TrainingError, match="leave out 110 of 300 records; the limit is 100"):
        bad.add(died("making", 10))

    assert bad.batches == tuple(BatchId(0, 0, batch) for batch in range(10))
    assert len(run.notes) == 10


def test_a_worker_avoids_bad_and_suspicious_batches(run_of):
    context = run_of().context
    timeouts = _timeouts_of(Workers(1, 2))
    worker = Worker(
        Assignment(context.job, context.plan, {}, None, 2, 2, "keras", timeouts, bytes(32))
    )
    worker._context = context
    worker._loop = SimpleNamespace(progress=context.initial_progress())
    worker.leave_out([BatchId(0, 0, 2)], {(0, 0), (1, 0)})

    def made(epoch, *left_out):
        fed = worker._noted_batches(left_out, epoch, ShardLease(0, stop=4))
        return [(each.number, each.batch is not None, each.is_empty) for each in fed]

    assert made(0) == [(0, True, False), (1, True, False), (2, False, False)]
    assert made(1) == [(0, False, False)]
    assert [number for number, _, is_empty in made(0, BatchId(0, 0, 2)) if is_empty] == [2]
    assert len(made(2)) == 4


def test_a_new_round_skips_records_missing_in_its_checkpoint(run_of):
    run = run_of()
    bad = BadRecords(run, skip=True)
    progress = run.context.initial_progress()
    progress = progress.__class__(progress.ledger.leave_out([BatchId(0, 0, 1)]))
    bad.begin(Checkpoint(4, {}, {"progress": progress.to_json()}))
    assert bad.at_start == (BatchId(0, 0, 1),)

    bad.add(died("making", 2))
    bad.begin(None)

    assert bad.at_start == (BatchId(0, 0, 1), BatchId(0, 0, 2))


def test_records_of_a_pipeline_are_not_skipped(run_of):
    run = run_of(PIPELINE)

    with pytest.raises(UsageError, match="--skip_bad_records: .*pipeline"):
        BadRecords(run, skip=True)
    with pytest.raises(TrainingError, match="records 0 to 299") as raised:
        BadRecords(run, skip=False).add(died("making", 2))
    assert "--skip_bad_records" not in str(raised.value)
