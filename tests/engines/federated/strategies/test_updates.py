"""What all fusions share: the order of parties, float64, whole numbers, and what is refused."""

import ml_dtypes
import numpy as np
import pytest

from elasticdl.engines.federated.strategies.updates import (
    PartyUpdate,
    combined,
    in_order,
    is_averaged,
    named,
    num_not_finite,
    rounded,
    squared_distances,
)
from elasticdl.errors import AggregationError


def test_updates_are_sorted_by_party(update):
    ordered = in_order([update("b", [1]), update("c", [1]), update("a", [1])])

    assert [each.party for each in ordered] == ["a", "b", "c"]


def test_an_empty_list_of_updates_is_refused():
    with pytest.raises(AggregationError, match="There are no updates to combine"):
        in_order([])


def test_a_duplicate_party_is_named(update):
    with pytest.raises(AggregationError, match="^Party 'b' sent two updates in this round"):
        in_order([update("b", [1]), update("a", [1]), update("b", [2])])


@pytest.mark.parametrize("number", [0, -3])
def test_a_party_without_examples_is_refused(update, number):
    with pytest.raises(AggregationError, match=f"^Party 'b' trained on {number} examples"):
        in_order([update("a", [1]), update("b", [1], number)])


def test_parties_with_different_arrays_are_refused_with_names():
    north = PartyUpdate("north", {"a": np.float32([1]), "b": np.float32([1])}, 1)
    south = PartyUpdate("south", {"a": np.float32([1]), "c": np.float32([1])}, 1)

    with pytest.raises(
        AggregationError,
        match=r"^Party 'south' sent 2 arrays \(b missing and c unexpected\); party 'north' has 2\.",
    ):
        in_order([north, south])


def test_an_array_of_another_shape_or_dtype_is_refused(update):
    with pytest.raises(
        AggregationError, match=r"'b' sent w as float32\[2\]; party 'a' has float32\[1\]"
    ):
        in_order([update("a", [1]), update("b", [1, 2])])
    with pytest.raises(AggregationError, match=r"'b' sent w as float64\[1\]; party 'a'"):
        in_order([update("a", [1]), update("b", [1], dtype=np.float64)])


def test_an_array_unlike_that_of_the_aggregator_is_refused(update):
    with pytest.raises(AggregationError, match=r"the aggregator has float32\[2\]"):
        in_order([update("a", [1])], {"w": np.float32([1, 2])})


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_party_and_count(update, number):
    with pytest.raises(AggregationError, match="^Party 'b' sent w with 2 of 3 numbers not finite"):
        in_order([update("a", [1, 1, 1]), update("b", [number, 1, number])])


def test_infinities_that_cancel_are_detected():
    assert num_not_finite(np.float32([np.inf, -np.inf, 1])) == 2


def test_large_finite_numbers_are_accepted_despite_an_infinite_sum():
    assert num_not_finite(np.float64([1.7e308, 1.7e308])) == 0
    assert num_not_finite(np.zeros((0, 3), np.float32)) == 0


def test_floats_of_every_width_are_averaged_but_integers_are_not():
    real = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    whole = [np.int8, np.uint32, np.int64, np.bool_, ml_dtypes.int4]

    assert all(is_averaged(np.dtype(dtype)) for dtype in real)
    assert not any(is_averaged(np.dtype(dtype)) for dtype in whole)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([{}])])
def test_unsupported_dtypes_are_refused(array):
    with pytest.raises(AggregationError, match="cannot be fused"):
        in_order([PartyUpdate("a", {"w": array}, 1)])


def test_control_characters_in_foreign_names_are_escaped():
    assert named(["a\x1b[31m", "b" * 999]) == f"a?[31m, {'b' * 80}"


def test_sums_are_computed_in_float64():
    # In float32 the ones would be lost beside 2**24.
    sent = [2**24, *[1] * 8]
    updates = [PartyUpdate(f"{i}", {"w": np.float32([n])}, 1) for i, n in enumerate(sent)]

    fused = combined(updates, np.ones(9))

    assert fused["w"] == np.float32([2**24 + 8])


def test_a_scalar_stays_a_scalar():
    fused = combined([PartyUpdate("a", {"w": np.array(3.0, np.float32)}, 1)], np.ones(1))

    assert fused["w"].shape == ()
    assert fused["w"].dtype == np.float32


def test_bfloat16_stays_bfloat16():
    updates = [PartyUpdate(str(n), {"w": np.array([n], ml_dtypes.bfloat16)}, 1) for n in (1, 3)]

    fused = combined(updates, np.float64([0.5, 0.5]))

    assert fused["w"].dtype == ml_dtypes.bfloat16
    assert float(fused["w"][0]) == 2


def test_integers_come_from_the_party_with_the_most_examples():
    updates = [
        PartyUpdate("a", {"count": np.int64([1]), "on": np.array([True])}, 1),
        PartyUpdate("b", {"count": np.int64([2]), "on": np.array([False])}, 5),
        PartyUpdate("c", {"count": np.int64([3]), "on": np.array([True])}, 5),
    ]

    fused = combined(updates, np.full(3, 1 / 3))

    assert fused["count"].tolist() == [2]
    assert fused["on"].tolist() == [False]
    assert fused["count"].dtype == np.int64


def test_fused_arrays_share_no_memory_with_updates():
    sent = {"count": np.int64([1]), "w": np.float64([1])}

    for num_parties in (1, 2):
        updates = [PartyUpdate(str(i), sent, 1) for i in range(num_parties)]
        fused = combined(updates, np.full(num_parties, 1 / num_parties))

        assert not any(np.shares_memory(fused[name], sent[name]) for name in sent)


def test_a_result_that_its_dtype_cannot_hold_is_refused():
    with pytest.raises(AggregationError, match="^Combining w gave 1 of 2 numbers that float16"):
        rounded("w", np.float64([1, 1e6]), np.dtype(np.float16))


def test_distances_cover_all_float_arrays():
    start = {"a": np.float32([0]), "b": np.float32([0]), "count": np.int64([0])}
    updates = [
        PartyUpdate("p", {"a": np.float32([0]), "b": np.float32([0]), "count": np.int64([0])}, 1),
        PartyUpdate("q", {"a": np.float32([3]), "b": np.float32([4]), "count": np.int64([9])}, 1),
    ]

    assert squared_distances(start, updates).tolist() == [[0, 25], [25, 0]]


def test_distances_of_float64_weights_have_float64_precision(update):
    near = [update("a", [1.0], dtype=np.float64), update("b", [1 + 2**-40], dtype=np.float64)]

    assert squared_distances({"w": np.float64([1])}, near)[0, 1] == 2**-80


def test_distances_are_exact_beyond_float32_precision():
    # Weights near 1e8, where neighbours in float32 are 8 apart: what is written is what is sent.
    rng = np.random.default_rng(1)
    start = (1e8 + 1e6 * rng.standard_normal(1000)).astype(np.float32)
    moved = [start + np.float32(8) * rng.integers(-3, 4, 1000).astype(np.float32) for _ in range(3)]
    updates = [PartyUpdate(f"{i}", {"w": w}, 1) for i, w in enumerate(moved)]

    squared = squared_distances({"w": start}, updates)

    whole = [[int(number) for number in w] for w in moved]
    exact = [[sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for p in whole] for q in whole]
    assert squared.tolist() == exact
    # What Krum is often written as, in the weights' own float32.
    stacked = np.stack(moved)
    norms = (stacked * stacked).sum(axis=1)
    float32 = norms[:, None] + norms[None, :] - 2 * (stacked @ stacked.T)
    assert np.abs(float32 - squared).max() > 10 * squared.max()
