"""The cut of a dataset into shards."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.sharding.shard import ShardPlan


@given(
    num_records=st.integers(1, 500),
    minibatch_size=st.integers(1, 20),
    minibatches_per_shard=st.integers(1, 5),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_an_epoch_is_every_record_once(
    num_records, minibatch_size, minibatches_per_shard, shuffle, epoch
):
    plan = ShardPlan(num_records, minibatch_size, minibatches_per_shard, 5, shuffle)

    seen = Counter()
    for position in range(plan.num_shards):
        start, _ = plan.record_range(epoch, position)
        seen.update((start + plan.record_order(epoch, position)).tolist())

    assert seen == Counter(range(num_records))


def test_without_shuffle_records_come_as_stored():
    plan = ShardPlan(10, 2, 2, shuffle=False)

    assert [plan.record_range(3, position) for position in range(3)] == [(0, 4), (4, 8), (8, 10)]
    assert plan.record_order(3, 1).tolist() == [0, 1, 2, 3]


def test_epochs_differ_in_the_order_of_shards_and_of_records():
    plan = ShardPlan(1000, 2, 5)

    assert [plan.record_range(0, p) for p in range(9)] != [
        plan.record_range(1, p) for p in range(9)
    ]
    assert plan.record_order(0, 0).tolist() != plan.record_order(1, 0).tolist()


@pytest.mark.parametrize(("num_records", "expected"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_all_shards_but_the_last_are_whole(num_records, expected):
    plan = ShardPlan(num_records, minibatch_size=2, minibatches_per_shard=2)

    assert plan.num_shards == expected


def test_a_billion_records_are_planned_without_a_list():
    plan = ShardPlan(10**9, 64)

    start, stop = plan.record_range(epoch=3, position=400_000)

    assert stop - start == 2048
