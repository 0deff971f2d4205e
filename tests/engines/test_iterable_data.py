"""Batches of a pipeline of the user's: an epoch is a function of its number, from any batch on."""

import itertools
import logging
import random
from collections import Counter

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import BatchesInput, Epochs, Mode, ModelDefinition, Origin
from elasticdl.engines import iterable_data
from elasticdl.engines.feed import training_batches
from elasticdl.engines.iterable_data import IterableData, PipelineReader
from elasticdl.engines.randomness import seeded
from elasticdl.errors import DataError, DefinitionError
from elasticdl.job import Job, ModelReference, TrainingOptions, Workers
from elasticdl.sharding.epoch_order import ShardPlan
from elasticdl.sharding.ledger import LeaseUpdate, Ledger, ShardLease

NAME = "dataset.py:7: Loader.create_training_generator()"


class Pipeline:
    """Batches of one number each, drawn anew; remembers how it was begun and read.

    Attributes:
        begun: (epoch, first batch) of each beginning.
        made: Number of each batch that was made.
    """

    def __init__(self, num_batches=6, *, indexed=False, ends_after=None, reproducible=True):
        self.begun, self.made = [], []
        self._indexed = indexed
        self._length = num_batches if ends_after is None else ends_after
        self.noise = 0.0
        self.epochs = Epochs(
            num_examples=num_batches,
            num_batches=num_batches,
            begin=self._begin,
            indexed=indexed,
            reproducible=reproducible,
            name=NAME,
        )

    def _begin(self, epoch, first):
        self.begun.append((epoch, first))
        offset = random.random()
        return (self._batch(number, offset) for number in range(first, self._length))

    def _batch(self, number, offset):
        self.made.append(number)
        drawn = offset + np.random.rand() + self.noise  # noqa: NPY002 - users do
        return Batch(np.float64([[drawn]]), np.int64([number]), 1)


@pytest.fixture(params=[False, True], ids=["replayed", "indexed"])
def indexed(request):
    return request.param


def values(batches):
    return [float(made.batch.features[0, 0]) for made in batches]


def job_of(num_workers=None, seed=3):
    return Job(
        command="train",
        data="folder",
        output="out",
        model=ModelReference("zoo", "models.Builder"),
        training=TrainingOptions(seed=seed),
        workers=None if num_workers is None else Workers(1, num_workers),
    )


def own(pipeline, job=None, validation=None):
    pipelines = {Mode.TRAINING: pipeline, Mode.EVALUATION: validation}
    definition = ModelDefinition(
        origin=Origin("abstractions", "models.py", 1, "models.Builder", "zoo"),
        framework="keras",
        create_model=lambda: None,
        input=BatchesInput(lambda data, mode: pipelines[mode].epochs),
        loss=None,
        create_optimizer=lambda: None,
    )
    return IterableData(definition, job or job_of())


def plan_of(data, num_workers=None):
    return data.plan_shards(job_of(num_workers))


# --- reading --------------------------------------------------------------------------------


def test_an_epoch_is_reproducible_and_differs_from_others(indexed):
    one = PipelineReader(Pipeline(indexed=indexed).epochs, 3)
    other = PipelineReader(Pipeline(indexed=indexed).epochs, 3)

    first = [values(one.batches(epoch, 0, 6)) for epoch in (0, 1)]
    backwards = [values(other.batches(epoch, 0, 6)) for epoch in (1, 0)]

    assert first == backwards[::-1]
    assert not {*first[0]} & {*first[1]}
    assert len({*first[0]}) == 6


def test_another_seed_gives_another_epoch(indexed):
    one, other = (PipelineReader(Pipeline(indexed=indexed).epochs, seed) for seed in (3, 4))

    assert values(one.batches(0, 0, 6)) != values(other.batches(0, 0, 6))


@pytest.mark.parametrize("start", [1, 3, 5])
def test_reading_from_the_middle_gives_the_same_batches(indexed, start):
    whole = values(PipelineReader(Pipeline(indexed=indexed).epochs, 3).batches(2, 0, 6))

    assert (
        values(PipelineReader(Pipeline(indexed=indexed).epochs, 3).batches(2, start, 6))
        == whole[start:]
    )


def test_an_indexed_pipeline_begins_at_the_requested_batch():
    pipeline = Pipeline(indexed=True)

    list(PipelineReader(pipeline.epochs, 3).batches(2, 4, 6))

    assert pipeline.begun == [(2, 4)]
    assert pipeline.made == [4, 5]


def test_an_unindexed_pipeline_is_read_from_its_start():
    pipeline = Pipeline()

    list(PipelineReader(pipeline.epochs, 3).batches(2, 4, 6))

    assert pipeline.begun == [(2, 0)]
    assert pipeline.made == [0, 1, 2, 3, 4, 5]


def test_going_back_a_little_does_not_restart_the_pipeline(indexed):
    pipeline = Pipeline(indexed=indexed)
    reading = PipelineReader(pipeline.epochs, 3)
    whole = values(reading.batches(0, 0, 5))

    assert values(reading.batches(0, 2, 6))[:3] == whole[2:]
    assert pipeline.begun == [(0, 0)]
    assert pipeline.made == [0, 1, 2, 3, 4, 5]


def test_going_back_beyond_kept_batches_restarts_the_pipeline(indexed, monkeypatch):
    # Two batches of two numbers of eight bytes.
    monkeypatch.setattr(iterable_data, "_MAX_BYTES_BEHIND", 32)
    pipeline = Pipeline(indexed=indexed)
    reading = PipelineReader(pipeline.epochs, 3)
    whole = values(reading.batches(0, 0, 5))

    assert values(reading.batches(0, 3, 5)) == whole[3:]
    assert len(pipeline.begun) == 1
    assert values(reading.batches(0, 2, 3)) == whole[2:3]
    assert pipeline.begun[1:] == [(0, 2 if indexed else 0)]


def test_skipping_forward_reads_or_jumps(indexed):
    pipeline = Pipeline(indexed=indexed)
    reading = PipelineReader(pipeline.epochs, 3)
    list(reading.batches(0, 0, 1))
    list(reading.batches(0, 4, 5))

    assert pipeline.made == ([0, 4] if indexed else [0, 1, 2, 3, 4])


def test_random_draws_between_batches_do_not_matter(indexed):
    reading = PipelineReader(Pipeline(indexed=indexed).epochs, 3)
    whole = values(PipelineReader(Pipeline(indexed=indexed).epochs, 3).batches(0, 0, 6))

    got = []
    for made in reading.batches(0, 0, 6):
        got += values([made])
        with seeded(99):
            random.random()

    assert got == whole


def test_the_digest_before_a_batch_covers_earlier_batches():
    made = list(PipelineReader(Pipeline().epochs, 3).batches(0, 0, 6))
    reading = PipelineReader(Pipeline().epochs, 3)

    asked = [reading.digest_before(0, number) for number in (0, 3, 1, 6)]

    assert asked == [0, made[2].digest, made[0].digest, made[5].digest]
    assert len({each.digest for each in made}) == 6


def test_a_pipeline_that_ends_early_is_reported_with_both_numbers(indexed):
    reading = PipelineReader(Pipeline(indexed=indexed, ends_after=4).epochs, 3)

    with pytest.raises(DefinitionError) as caught:
        list(reading.batches(0, 0, 6))

    assert f"{NAME} ended after 4 batches of an epoch; expected 6" in str(caught.value)


def test_a_long_replay_is_reported_once(monkeypatch):
    told, clock = [], itertools.count(0.0, 1.0)
    monkeypatch.setattr(iterable_data.time, "monotonic", lambda: next(clock))

    list(PipelineReader(Pipeline(12).epochs, 3, told.append).batches(1, 9, 12))

    # Three of nine batches took three seconds.
    assert told == ["Reading the first 9 batches of epoch 2 again to resume after them: 6 s left."]


def test_continuing_is_not_reported_as_a_replay(monkeypatch):
    told, clock = [], itertools.count(0.0, 100.0)
    monkeypatch.setattr(iterable_data.time, "monotonic", lambda: next(clock))

    list(PipelineReader(Pipeline(12).epochs, 3, told.append).batches(0, 0, 12))

    assert told == []


def test_a_replay_is_logged_by_default(monkeypatch, caplog):
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(iterable_data.time, "monotonic", lambda: next(clock))

    with caplog.at_level(logging.INFO, "elasticdl"):
        list(PipelineReader(Pipeline(12).epochs, 3).batches(0, 9, 10))

    assert "Reading the first 9 batches of epoch 1 again" in caplog.text


def test_an_epoch_that_failed_to_begin_is_retried():
    pipeline = Pipeline(indexed=True)
    reading = PipelineReader(pipeline.epochs, 3)
    list(reading.batches(0, 0, 2))
    begin, failing = pipeline.epochs.begin, [True]

    def fails_once(epoch, first):
        if failing and failing.pop():
            raise OSError("the folder is away")
        return begin(epoch, first)

    object.__setattr__(pipeline.epochs, "begin", fails_once)
    with pytest.raises(OSError, match="away"):
        next(reading.batches(1, 2, 3))

    assert values(reading.batches(1, 2, 6)) == values(
        PipelineReader(Pipeline(indexed=True).epochs, 3).batches(1, 2, 6)
    )


def drawing_from_tensorflow(indexed):
    """Return epochs of which each batch is a number that TensorFlow draws when it is made."""
    import tensorflow as tf

    def begin(epoch, first):
        return (
            Batch(tf.random.uniform([1, 1]).numpy(), np.int64([number]), 1)
            for number in range(first, 6)
        )

    return Epochs(6, 6, begin, indexed=indexed, reproducible=False, name=NAME)


def test_tensorflow_draws_are_repeated_when_an_epoch_is_reread(indexed):
    epochs = drawing_from_tensorflow(indexed)
    reading = PipelineReader(epochs, 3)

    first, between, again = (values(reading.batches(epoch, 0, 6)) for epoch in (0, 1, 0))

    assert first == again != between
    assert values(PipelineReader(epochs, 3).batches(0, 0, 6)) == first
    assert values(PipelineReader(epochs, 3).batches(0, 2, 6)) == first[2:]


# --- as training data ----------------------------------------------------------------------


@pytest.mark.parametrize("committed", [0, 1, 3, 5])
def test_a_piece_continues_after_its_committed_batches(indexed, committed):
    before = own(Pipeline(indexed=indexed))
    whole = list(before.shard_batches(plan_of(before), 1, ShardLease(0)))
    digest = whole[committed - 1].digest if committed else 0
    data = own(Pipeline(indexed=indexed))

    rest = list(data.shard_batches(plan_of(data), 1, ShardLease(0, committed, 0, digest)))

    assert values(rest) == values(whole[committed:])
    assert [(fed.number, fed.finished) for fed in rest] == [
        (n, n == 5) for n in range(committed, 6)
    ]
    assert [fed.digest for fed in rest] == [fed.digest for fed in whole[committed:]]


def test_a_piece_ends_before_the_part_that_another_worker_took(indexed):
    data = own(Pipeline(indexed=indexed))
    plan = plan_of(data)

    front = list(data.shard_batches(plan, 0, ShardLease(0, 1, 3)))
    rear = list(data.shard_batches(plan, 0, ShardLease(0, 3)))

    assert [fed.number for fed in front] == [1, 2]
    assert [fed.number for fed in rear] == [3, 4, 5]
    assert [fed.finished for fed in [*front, *rear]] == [False] * 4 + [True]


def test_an_irreproducible_pipeline_is_named():
    data = own(Pipeline())
    whole = list(data.shard_batches(plan_of(data), 1, ShardLease(0)))
    changed = Pipeline()
    changed.noise = 1e-9
    again = own(changed)

    with pytest.raises(DefinitionError) as caught:
        list(again.shard_batches(plan_of(again), 1, ShardLease(0, 4, 0, whole[3].digest)))

    assert str(caught.value).startswith(
        f"{NAME} does not yield the same batches when it is read again: the first 4 of epoch 2"
    )


def test_an_indexed_pipeline_has_no_digest(indexed):
    data = own(Pipeline(indexed=indexed))

    digests = {fed.digest for fed in data.shard_batches(plan_of(data), 0, ShardLease(0))}

    assert (digests == {0}) == indexed


def test_an_epoch_without_batches_is_refused():
    with pytest.raises(DataError, match=r"create_training_generator\(\): an epoch has no batches"):
        own(Pipeline(0))


def test_inspecting_the_first_batch_does_not_advance_the_training():
    pipeline = Pipeline()
    data = own(pipeline)
    plan = plan_of(data)
    feed = data.shard_batches(plan, 0, ShardLease(0))
    first = next(feed)

    assert data.example(plan).features == first.batch.features
    assert data.minibatch_size(plan) == 1
    assert [fed.number for fed in feed] == [1, 2, 3, 4, 5]
    assert pipeline.begun == [(0, 0), (0, 0)]


def test_one_process_reads_an_epoch_as_one_shard():
    data = own(Pipeline(20))

    assert plan_of(data).num_shards == 1
    assert data.batches_per_shard(plan_of(data)) == 20


@pytest.mark.parametrize("num_batches", [1, 8, 20])
def test_workers_read_each_batch_of_an_epoch_once(indexed, num_batches):
    job = job_of(num_workers=3)
    workers = [own(Pipeline(num_batches, indexed=indexed), job) for _ in range(3)]
    plan = workers[0].plan_shards(job)
    whole = values(
        PipelineReader(Pipeline(num_batches, indexed=indexed).epochs, 3).batches(0, 0, num_batches)
    )

    ledger = Ledger(plan.num_shards, workers[0].batches_per_shard(plan))
    labels, got = [], []
    while not ledger.epoch_done:
        ledger = ledger.assign(range(3))
        rows = []
        for rank, lease in ledger.leased.items():
            fed = next(workers[rank].shard_batches(plan, 0, lease))
            if fed.batch is not None:
                labels.append(int(fed.batch.labels[0]))
                got += values([fed])
            rows.append(LeaseUpdate(rank, int(fed.batch is not None), fed.finished, fed.digest))
        ledger = ledger.advance(rows)

    assert Counter(labels) == Counter(range(num_batches))
    assert sorted(got) == sorted(whole)


def test_epochs_follow_one_another_in_the_ledger(indexed):
    data = own(Pipeline(indexed=indexed))
    plan = plan_of(data)

    fed = list(
        training_batches(
            lambda epoch, lease: data.shard_batches(plan, epoch, lease),
            Ledger(plan.num_shards, data.batches_per_shard(plan)),
            rank=0,
            ranks=[0],
            num_epochs=2,
        )
    )

    assert [(each.epoch, each.number) for each in fed] == [(e, n) for e in (0, 1) for n in range(6)]
    assert len({*values(fed)}) == 12


def test_python_generators_are_refused_on_workers():
    pipeline = Pipeline(reproducible=False)

    with pytest.raises(DefinitionError) as caught:
        own(pipeline, job_of(num_workers=2))

    assert str(caught.value).startswith(f"{NAME} yields batches that can only be read in order")
    assert own(pipeline, job_of()).num_records == 6


def test_data_are_identified_by_place_and_number_of_batches():
    data = own(Pipeline(20))

    assert (data.files, data.num_records) == ([("folder", 20)], 20)


# --- validation -----------------------------------------------------------------------------


def everything(validation):
    return [
        float(batch.features[0, 0])
        for shard in range(validation.num_shards)
        for batch in validation.batches(shard)
    ]


def test_validation_does_not_depend_on_other_random_draws(indexed, monkeypatch):
    # Nothing is kept, so all is read again.
    monkeypatch.setattr(iterable_data, "_MAX_BYTES_BEHIND", 0)
    pipeline = Pipeline(70, indexed=indexed)
    validation = own(Pipeline(), validation=pipeline).validation("folder", ShardPlan(6, 1, seed=3))

    first = everything(validation)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - users do
    again = everything(validation)

    assert first == again
    assert len({*first}) == 70
    assert pipeline.made.count(0) > 1


def test_validation_uses_other_random_numbers_than_training(indexed):
    pipeline = Pipeline(6, indexed=indexed)
    data = own(pipeline, validation=pipeline)
    plan = plan_of(data)

    trained = values(data.shard_batches(plan, 0, ShardLease(0)))

    assert not {*trained} & {*everything(data.validation("folder", plan))}


def test_validation_shards_can_be_read_in_any_order(indexed):
    validation = own(Pipeline(), validation=Pipeline(70, indexed=indexed)).validation(
        "folder", ShardPlan(6, 1, seed=3)
    )

    def shard(number):
        return [int(batch.labels[0]) for batch in validation.batches(number)]

    assert validation.num_shards == 3
    assert shard(2) + shard(0) + shard(1) == [*range(64, 70), *range(64)]


def test_validation_without_batches_is_refused():
    with pytest.raises(DataError, match="there are no batches to evaluate on"):
        own(Pipeline(), validation=Pipeline(0)).validation("folder", ShardPlan(6, 1))
