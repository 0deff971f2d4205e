"""Fusions that choose parties."""

import numpy as np
import pytest

from elasticdl.engines.federated.strategies.selection import krum, multi_krum, zeno
from elasticdl.engines.federated.strategies.updates import PartyUpdate
from elasticdl.errors import AggregationError

ZERO = {"w": np.float32([0])}


def of(update, **sent):
    return [update(party, [number]) for party, number in sent.items()]


def test_krum_chooses_the_party_nearest_to_its_neighbours(update):
    # Five parties, one may lie: a score is over two others. c: 0.1² + 0.4², b: 0.1² + 0.5².
    fused = krum(ZERO, of(update, a=1, b=2, c=2.1, d=2.5, e=-99), {}, byzantine_threshold=1)

    assert fused.chosen == ("c",)
    assert fused.weights["w"] == np.float32([2.1])


def test_krum_breaks_ties_by_name(update):
    updates = of(update, d=1, c=1, b=1, e=1, a=5)

    assert krum(ZERO, updates, {}, byzantine_threshold=1).chosen == ("b",)


def test_counters_come_from_the_party_that_krum_chooses():
    sent = {"a": 1.0, "b": 2.0, "c": 2.1}
    updates = [
        PartyUpdate(party, {"w": np.float32([number]), "count": np.int64([ord(party)])}, 1)
        for party, number in sent.items()
    ]
    start = {"w": np.float32([0]), "count": np.int64([0])}

    fused = krum(start, updates, {}, byzantine_threshold=0)

    assert fused.weights["count"] == [ord(fused.chosen[0])]


@pytest.mark.parametrize("num_byzantine", [0, 1, 2])
def test_krum_needs_enough_honest_parties(update, num_byzantine):
    updates = [update(str(i), [i]) for i in range(2 * num_byzantine + 3)]

    assert krum(ZERO, updates, {}, byzantine_threshold=num_byzantine).chosen
    with pytest.raises(AggregationError, match=f"Krum needs at least {2 * num_byzantine + 3}"):
        krum(ZERO, updates[1:], {}, byzantine_threshold=num_byzantine)


def test_krum_finds_outliers_beyond_float32_precision():
    # The honest are 8 apart, the liars 8000; all of it drowns in the rounding of |w|² = 1e18.
    rng = np.random.default_rng(3)
    start = np.full(100, 1e8, np.float32)
    step = np.float32(8)
    updates = [
        PartyUpdate(f"honest{i}", {"w": start + step * rng.integers(0, 2, 100, np.int8)}, 1)
        for i in range(5)
    ]
    updates += [
        PartyUpdate(f"a{i}", {"w": start + 1000 * step * rng.integers(0, 2, 100, np.int8)}, 1)
        for i in range(2)
    ]

    fused = multi_krum({"w": start}, updates, {}, byzantine_threshold=2, num_chosen=5)

    assert fused.chosen == tuple(f"honest{i}" for i in range(5))


def test_multi_krum_averages_the_best_without_counting_examples(update):
    updates = [*of(update, a=1, b=2, d=2.5, e=-99), update("c", [3.0], 50)]

    fused = multi_krum(ZERO, updates, {}, byzantine_threshold=1, num_chosen=3)

    assert fused.chosen == ("b", "c", "d")
    assert fused.weights["w"] == [2.5]


def test_multi_krum_chooses_as_many_as_a_score_covers(update):
    fused = multi_krum(
        ZERO, of(update, a=1, b=2, c=2.1, d=2.5, e=-99), {}, byzantine_threshold=1, num_chosen=0
    )

    assert fused.chosen == ("b", "c")


def test_multi_krum_of_one_is_krum(update):
    updates = of(update, a=1, b=2, c=2.1, d=2.5, e=-99)

    one = multi_krum(ZERO, updates, {}, byzantine_threshold=1, num_chosen=1)

    assert one.chosen == krum(ZERO, updates, {}, byzantine_threshold=1).chosen


def test_num_chosen_beyond_the_honest_parties_is_refused(update):
    with pytest.raises(AggregationError, match="^num_chosen is 5; expected at most 4"):
        multi_krum(
            ZERO, of(update, a=1, b=2, c=2, d=2, e=9), {}, byzantine_threshold=1, num_chosen=5
        )


def test_zeno_excludes_parties_that_increase_the_loss(update):
    fused = zeno(
        ZERO,
        of(update, a=1, b=2, c=-50),
        {},
        score=lambda weights: abs(float(weights["w"][0]) - 1.5),
        byzantine_threshold=1,
        rho=0.0,
    )

    assert fused.chosen == ("a", "b")
    assert fused.weights["w"] == [1.5]


def test_zeno_penalizes_large_updates(update):
    fused = zeno(
        ZERO, of(update, a=9, b=1), {}, score=lambda _: 1.0, byzantine_threshold=1, rho=0.1
    )

    assert fused.chosen == ("b",)


def test_parties_without_a_finite_loss_come_last(update):
    def score(weights):
        return np.nan if weights["w"][0] == 1 else 100.0

    fused = zeno(ZERO, of(update, a=1, b=2), {}, score=score, byzantine_threshold=1, rho=0.0)

    assert fused.chosen == ("b",)


def test_too_many_parties_without_a_finite_loss_are_named(update):
    with pytest.raises(AggregationError, match="^The weights of a, b have no finite loss"):
        zeno(ZERO, of(update, a=1, b=2), {}, score=lambda _: np.inf, byzantine_threshold=1, rho=0)


def test_zeno_must_keep_a_party(update):
    with pytest.raises(AggregationError, match="Zeno needs at least 3"):
        zeno(ZERO, of(update, a=1, b=2), {}, score=lambda _: 1, byzantine_threshold=2, rho=0)
