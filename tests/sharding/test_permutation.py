"""Orders that are functions of a key."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.sharding import permutation
from elasticdl.sharding.permutation import derive_seed, permute


@given(size=st.integers(1, 3000), key=st.integers(0, 2**62))
def test_every_element_has_exactly_one_position(size, key):
    places = permute(np.arange(size), size, key)

    assert sorted(places.tolist()) == list(range(size))


@given(size=st.integers(1, 10**12), key=st.integers(0, 2**62), place=st.integers(0, 10**12))
def test_a_single_position_can_be_computed_alone(size, key, place):
    place %= size

    alone = int(permute(place, size, key))

    assert alone == permute(np.array([place, 0]), size, key)[0]
    assert 0 <= alone < size


def test_the_order_is_the_same_in_every_version():
    # An order that changed would silently break the resume of every job begun before.
    assert permute(np.arange(8), 8, key=42).tolist() == GOLDEN_ORDER
    assert derive_seed(1, 2, 3) == GOLDEN_SEED


@given(parts=st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4))
def test_seeds_and_arrays_are_mixed_alike(parts):
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = permutation._mix(state + np.uint64(part % 2**64))

    assert derive_seed(*parts) == int(state[0]) >> 1


def test_neighbouring_keys_give_different_orders():
    orders = {tuple(permute(np.arange(50), 50, derive_seed(7, epoch))) for epoch in range(100)}

    assert len(orders) == 100


def test_first_positions_are_distributed_evenly():
    firsts = [int(permute(0, 4, derive_seed(seed))) for seed in range(4000)]

    assert np.all(np.abs(np.bincount(firsts, minlength=4) - 1000) < 120)


GOLDEN_ORDER = [2, 6, 0, 1, 7, 3, 5, 4]
GOLDEN_SEED = 3851293329796251419
