"""Fusions that stay in the middle of the parties, whoever lies."""

import numpy as np
import pytest

from elasticdl.engines.federated.strategies.robust import (
    coordinate_median,
    fed_plus,
    geometric_median,
    nearest_neighbor_mixing,
    num_trimmed_of,
    trimmed_mean,
    weiszfeld_shares,
)
from elasticdl.errors import AggregationError

ZERO = {"w": np.float32([0])}


def of(update, **sent):
    return [update(party, [number]) for party, number in sent.items()]


def test_a_median_is_elementwise_and_counts_each_party_once(update):
    updates = [update("a", [1, 9]), update("b", [2, 7], 99), update("c", [50, 8])]

    fused = coordinate_median({"w": np.float32([0, 0])}, updates, {})

    assert fused.weights["w"].tolist() == [2, 8]
    assert fused.chosen == ("a", "b", "c")


def test_a_median_of_an_even_number_is_between_the_middle_ones(update):
    fused = coordinate_median(ZERO, of(update, a=1, b=2, c=4, d=50), {})

    assert fused.weights["w"] == [3]


def test_a_trimmed_mean_drops_both_ends_elementwise(update):
    updates = [update(str(i), n) for i, n in enumerate(([0, 9], [1, 1], [3, 3], [4, 5], [99, -9]))]

    fused = trimmed_mean({"w": np.float32([0, 0])}, updates, {}, beta=0.2)

    assert fused.weights["w"] == pytest.approx([8 / 3, 3])


def test_trimming_starts_at_three_parties(update):
    assert trimmed_mean(ZERO, of(update, a=0, b=2, c=9), {}, beta=0.01).weights["w"] == [2]
    assert trimmed_mean(ZERO, of(update, a=0, b=2), {}, beta=0.4).weights["w"] == [1]


def test_without_trimming_the_result_is_the_mean(update):
    assert trimmed_mean(ZERO, of(update, a=0, b=2, c=7), {}, beta=0.0).weights["w"] == [3]


def test_the_number_trimmed_has_no_rounding_errors():
    assert 0.29 * 100 < 29
    assert num_trimmed_of(100, 0.29) == 29
    assert all(2 * num_trimmed_of(n, 0.49999) < n for n in range(1, 200))


def test_a_geometric_median_of_three_corners_is_their_fermat_point(update):
    corners = [[0, 0], [1, 0], [0, 1]]
    updates = [update(str(i), corner, dtype=np.float64) for i, corner in enumerate(corners)]

    fused = geometric_median({"w": np.float64([0, 0])}, updates, {}, smoothing=1e-9)

    assert fused.weights["w"] == pytest.approx([(3 - 3**0.5) / 6] * 2, abs=1e-6)


def test_a_geometric_median_counts_examples(update):
    updates = [update("a", [0.0]), update("b", [1.0]), update("c", [7.0], 9)]

    assert geometric_median(ZERO, updates, {}, smoothing=1e-9).weights["w"] == pytest.approx([7])


def test_the_geometric_median_minimizes_the_sum_of_distances(update):
    rng = np.random.default_rng(5)
    points = rng.standard_normal((7, 3))
    updates = [update(str(i), point, dtype=np.float64) for i, point in enumerate(points)]

    median = geometric_median({"w": np.zeros(3)}, updates, {}, smoothing=1e-9).weights["w"]

    def total(point):
        return np.linalg.norm(points - point, axis=1).sum()

    nearby = median + 1e-3 * rng.standard_normal((100, 3))
    assert min(map(total, nearby)) > total(median)


def test_weiszfeld_shares_of_identical_points_are_their_counts():
    shares = weiszfeld_shares(np.zeros((3, 3)), np.float64([0.2, 0.3, 0.5]), 1e-6)

    assert shares == pytest.approx([0.2, 0.3, 0.5])


def apart_with_liars(update, rng):
    """Return honest updates in two groups that differ, two liars, and the mean of the honest."""
    honest = [sign * 3 + rng.normal(0, 0.1, 20) for sign in (1, 1, 1, 1, -1, -1, -1, -1)]
    lies = [-40 * np.ones(20), -41 * np.ones(20)]
    sent = {f"p{i}": array for i, array in enumerate([*honest, *lies])}
    updates = [update(party, array, dtype=np.float64) for party, array in sent.items()]
    return updates, np.mean(honest, axis=0)


@pytest.mark.parametrize(
    ("fuse", "params"),
    [
        (coordinate_median, {}),
        (trimmed_mean, {"beta": 0.2}),
        (geometric_median, {"smoothing": 1e-6}),
    ],
)
def test_mixing_brings_a_robust_centre_near_the_mean(fuse, params, update):
    updates, expected = apart_with_liars(update, np.random.default_rng(3))
    zero = {"w": np.zeros(20)}

    plain = fuse(zero, updates, {}, **params).weights["w"]
    found = fuse(zero, updates, {}, byzantine_threshold=2, **params).weights["w"]

    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(plain - expected)


def test_mixing_averages_nearest_neighbours_without_counts(update):
    updates = [update("a", [0], 1), update("b", [1], 50), update("c", [3], 1), update("d", [90])]

    means = {
        one.party: float(one.weights["w"][0]) for one in nearest_neighbor_mixing(ZERO, updates, 1)
    }

    assert means == pytest.approx({"a": 4 / 3, "b": 4 / 3, "c": 4 / 3, "d": 94 / 3})


def test_mixing_without_byzantine_parties_changes_nothing(update):
    updates = of(update, b=1, a=5)

    assert [one.party for one in nearest_neighbor_mixing(ZERO, updates, 0)] == ["a", "b"]
    assert nearest_neighbor_mixing(ZERO, updates, 0)[1].weights is updates[0].weights


def test_a_centre_of_fed_plus_is_a_mean_a_median_or_a_geometric_median(update):
    updates = [update("a", [0.0]), update("b", [1.0]), update("c", [8.0], 2)]

    found = {
        centre: fed_plus(ZERO, updates, {}, centre=centre, rho=0.1).weights["w"].tolist()
        for centre in ("mean", "median", "geometric_median")
    }

    # Half of the examples are at 8: there, and up to 1, every point is a geometric median.
    assert found["mean"] == [4.25]
    assert found["median"] == [1]
    assert 1 <= found["geometric_median"][0] <= 8
    with pytest.raises(AggregationError, match="centre is 'middle'; expected one of mean, median"):
        fed_plus(ZERO, updates, {}, centre="middle", rho=0.1)
