"""The cut of a dataset into shards."""

import itertools
import json
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.sharding.epoch_order import ShardPlan

BLOCKS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), max_size=12)


def plan_of(num_records, blocks=(), **values):
    if blocks:
        num_records = sum(size * count for size, count in blocks)
    return ShardPlan(num_records, blocks=tuple(blocks), **values)


def epoch_of(plan, epoch):
    shards = [plan.record_numbers(epoch, position) for position in range(plan.num_shards)]
    return np.concatenate(shards).tolist()


@given(
    num_records=st.integers(1, 500),
    blocks=BLOCKS,
    minibatch_size=st.integers(1, 20),
    minibatches_per_shard=st.integers(1, 5),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_an_epoch_has_every_record_once(
    num_records, blocks, minibatch_size, minibatches_per_shard, shuffle, epoch
):
    plan = plan_of(
        num_records,
        blocks,
        minibatch_size=minibatch_size,
        minibatches_per_shard=minibatches_per_shard,
        seed=5,
        shuffle=shuffle,
    )

    assert Counter(epoch_of(plan, epoch)) == Counter(range(plan.num_records))


@given(
    blocks=BLOCKS.filter(bool),
    shard_size=st.integers(1, 40),
    epoch=st.integers(0, 3),
)
def test_a_shard_is_a_range_of_the_epochs_blocks(blocks, shard_size, epoch):
    plan = plan_of(0, blocks, minibatch_size=shard_size, minibatches_per_shard=1)
    sizes = [size for size, count in blocks for _ in range(count)]
    block_of = np.repeat(np.arange(len(sizes)), sizes)

    seen = [
        set(block_of[plan.record_numbers(epoch, shard)].tolist())
        for shard in range(plan.num_shards)
    ]

    # A block reaches from shard to shard, and never comes back.
    for block in range(len(sizes)):
        shards = [shard for shard, blocks_there in enumerate(seen) if block in blocks_there]
        assert shards == list(range(shards[0], shards[-1] + 1))
    # One block begins and one ends at a border; all others are whole.
    assert all(len(one & other) <= 1 for one, other in itertools.pairwise(seen))


@pytest.mark.parametrize("blocks", [(), ((7, 20), (3, 1), (7, 11))])
def test_any_shard_can_be_computed_alone(blocks):
    plan = plan_of(220, blocks, minibatch_size=4, minibatches_per_shard=3, seed=1)
    first, again = epoch_of(plan, 2), ShardPlan(**json.loads(json.dumps(asdict(plan))))

    start, stop = plan.span(9)

    assert again.record_numbers(2, 9).tolist() == first[start:stop]


def test_without_shuffle_records_keep_their_stored_order():
    plan = ShardPlan(10, 2, 2, shuffle=False)

    assert [plan.span(position) for position in range(3)] == [(0, 4), (4, 8), (8, 10)]
    assert plan.record_numbers(3, 1).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("blocks", [(), ((10, 100),)])
def test_orders_depend_only_on_seed_and_epoch(blocks):
    plan, other = (plan_of(1000, blocks, minibatch_size=2, seed=seed) for seed in (0, 1))

    orders = [epoch_of(plan, 0), epoch_of(plan, 1), epoch_of(other, 0)]

    assert orders[0] == epoch_of(plan_of(1000, blocks, minibatch_size=2), 0)
    assert len({tuple(order) for order in orders}) == 3


def test_without_blocks_a_shard_holds_records_of_all_the_data():
    plan = ShardPlan(10_000, 10, 10)

    per_tenth = np.bincount(plan.record_numbers(0, 3) // 1000, minlength=10)

    # Expected: 10 of each, with a standard deviation of 3.
    assert per_tenth.min() > 0


@pytest.mark.parametrize(("num_records", "expected"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_all_shards_except_the_last_are_full(num_records, expected):
    plan = ShardPlan(num_records, minibatch_size=2, minibatches_per_shard=2)

    assert plan.num_shards == expected
    assert len(plan.record_numbers(0, expected - 1)) == num_records - 4 * (expected - 1)


def test_a_billion_records_are_planned_in_constant_memory():
    plan = ShardPlan(10**9, 64)

    numbers = plan.record_numbers(epoch=3, position=400_000)

    assert len(set(numbers.tolist())) == 2048


def test_blocks_that_do_not_match_the_data_are_refused():
    with pytest.raises(ValueError, match="The blocks have 12 records; expected 11"):
        ShardPlan(11, 2, blocks=((4, 3),))
