"""The fusions by name, and what holds for all of them, whatever parties send."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elasticdl.engines.federated.strategies.fusions import FUSIONS, FusionParam, PartyUpdate
from elasticdl.errors import AggregationError

# Of every fusion params with which it takes one party and more.
ANY_NUMBER = {
    "iter_avg": {},
    "fedavg": {},
    "gradient_avg": {"learning_rate": 0.5},
    "fedprox": {"mu": 0.1},
    "fedavgm": {"learning_rate": 0.5, "momentum": 0.9},
    "fedadagrad": {"learning_rate": 0.1, "beta_1": 0.0, "epsilon": 1e-3},
    "fedadam": {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-3},
    "fedyogi": {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-3},
    "coordinate_median": {},
    "trimmed_mean": {"beta": 0.2},
    "geometric_median": {"smoothing": 1e-6},
    "zeno": {"byzantine_threshold": 0, "rho": 0.001, "score": lambda w: float(np.sum(w["dense"]))},
    "fed_plus": {"centre": "geometric_median", "rho": 0.1},
}
AT_LEAST_FIVE = {
    "krum": {"byzantine_threshold": 1},
    "multi_krum": {"byzantine_threshold": 1, "num_chosen": 0},
}
ALL = {**ANY_NUMBER, **AT_LEAST_FIVE}
# One party's update is the result, to the bit.
ONE_IS_ITSELF = ("iter_avg", "fedavg", "fedprox", "coordinate_median", "trimmed_mean",
                 "geometric_median", "zeno", "fed_plus")  # fmt: skip
# What is added to all parties and to the global weights is added to the result.
MOVES_ALONG = ("iter_avg", "fedavg", "fedprox", "fedavgm", "coordinate_median", "trimmed_mean",
               "geometric_median", "krum", "multi_krum")  # fmt: skip
ROBUST = {
    "coordinate_median": {},
    "trimmed_mean": {"beta": 0.25},
    "geometric_median": {"smoothing": 1e-6},
    "krum": {"byzantine_threshold": 2},
    "multi_krum": {"byzantine_threshold": 2, "num_chosen": 0},
}


@st.composite
def rounds(draw, least=1, most=7):
    """Draw global weights and updates: arrays of both widths, and a counter."""
    names = st.lists(st.text("abcé 1", min_size=1), min_size=least, max_size=most, unique=True)
    parties = draw(names)
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 1e4]))
    # Drawing each number by itself would take most of the tests' time.
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def weights():
        bias = scale * rng.standard_normal(3)
        bias[rng.integers(3)] = rng.choice([0.0, -0.0, 1e6, -1e-300])
        return {
            "dense": (scale * rng.standard_normal((2, 2))).astype(np.float32),
            "bias": bias,
            "count": np.array(rng.integers(0, 99)),
        }

    updates = [PartyUpdate(party, weights(), int(rng.integers(1, 500))) for party in parties]
    return weights(), updates


def bits(weights):
    return {name: (a.dtype.name, a.shape, a.tobytes()) for name, a in weights.items()}


def fused_by(name, start, updates, state=None):
    """Call a fusion's function as it is, with params that allow these updates."""
    if name == "gradient_avg":
        updates = [
            PartyUpdate(u.party, {n: u.weights[n] for n in ("dense", "bias")}, u.num_examples)
            for u in updates
        ]
    return FUSIONS[name].rule(start, updates, state or {}, **ALL[name])


def test_all_fusions_are_tested():
    assert ALL.keys() == FUSIONS.keys()


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_parties_does_not_matter(name):
    @settings(max_examples=30)
    @given(rounds(least=5 if name in AT_LEAST_FIVE else 1), st.randoms())
    def holds(drawn, random):
        start, updates = drawn
        shuffled = updates.copy()
        random.shuffle(shuffled)

        one, other = fused_by(name, start, updates), fused_by(name, start, shuffled)

        assert bits(one.weights) == bits(other.weights)
        assert bits(one.state) == bits(other.state)
        assert one.chosen == other.chosen

    holds()


@pytest.mark.parametrize("name", ONE_IS_ITSELF)
def test_a_single_party_gets_exactly_its_own_weights(name):
    @settings(max_examples=30)
    @given(rounds(most=1))
    def holds(drawn):
        start, updates = drawn

        fused = fused_by(name, start, updates)

        assert bits(fused.weights) == bits(updates[0].weights)
        assert fused.chosen == (updates[0].party,)

    holds()


@pytest.mark.parametrize("name", ALL)
def test_names_shapes_and_dtypes_match_the_updates(name):
    @settings(max_examples=30)
    @given(rounds(least=5))
    def holds(drawn):
        start, updates = drawn

        fused = fused_by(name, start, updates).weights

        form = {n: (a.dtype, a.shape) for n, a in updates[0].weights.items()}
        assert {n: (a.dtype, a.shape) for n, a in fused.items()} == form

    holds()


@pytest.mark.parametrize("name", ALL)
def test_updates_are_not_modified(name):
    @settings(max_examples=30)
    @given(rounds(least=5))
    def holds(drawn):
        start, updates = drawn
        before = bits(start), [bits(update.weights) for update in updates]

        fused = fused_by(name, start, updates)
        for array in fused.weights.values():
            array[...] = 0

        assert (bits(start), [bits(update.weights) for update in updates]) == before

    holds()


@given(rounds(), st.integers(1, 10**6))
def test_fedavg_is_iter_avg_when_counts_are_equal(drawn, count):
    start, updates = drawn
    updates = [PartyUpdate(update.party, update.weights, count) for update in updates]

    assert bits(fused_by("fedavg", start, updates).weights) == bits(
        fused_by("iter_avg", start, updates).weights
    )


@given(rounds(least=2, most=2))
def test_fedavg_is_not_iter_avg_when_counts_differ(drawn):
    start, (one, other) = drawn
    assume(abs(one.weights["bias"][0] - other.weights["bias"][0]) > 1)
    updates = [
        PartyUpdate(one.party, one.weights, 1),
        PartyUpdate(other.party, other.weights, 3),
    ]

    weighted = fused_by("fedavg", start, updates).weights["bias"][0]
    plain = fused_by("iter_avg", start, updates).weights["bias"][0]

    share = abs(weighted - plain) / abs(one.weights["bias"][0] - other.weights["bias"][0])
    assert share == pytest.approx(0.25, rel=1e-6)


@given(rounds(least=5))
def test_krum_returns_exactly_the_weights_of_the_chosen_party(drawn):
    start, updates = drawn

    fused = fused_by("krum", start, updates)

    (chosen,) = [update for update in updates if update.party in fused.chosen]
    assert bits(fused.weights) == bits(chosen.weights)


@pytest.mark.parametrize("name", MOVES_ALONG)
def test_fusions_commute_with_translation(name):
    # Steps of 1/8 and 64, so that adding rounds nothing.
    numbers = st.lists(st.integers(-80, 80), min_size=3, max_size=3)

    @settings(max_examples=30)
    @given(st.lists(numbers, min_size=5, max_size=8), numbers, st.integers(1, 40))
    def holds(sent, start, far):
        counts = [1 + i % 3 for i in range(len(sent))]

        def result(offset):
            updates = [
                PartyUpdate(f"{i}", {"w": np.float64(row) / 8 + offset}, count)
                for i, (row, count) in enumerate(zip(sent, counts, strict=True))
            ]
            start_here = {"w": np.float64(start) / 8 + offset}
            return FUSIONS[name].rule(start_here, updates, {}, **ALL[name])

        here, there = result(0), result(64 * far)

        assert there.weights["w"] - 64 * far == pytest.approx(here.weights["w"], abs=1e-9)
        assert here.chosen == there.chosen

    holds()


@pytest.mark.parametrize("name", ROBUST)
def test_two_sign_flippers_of_ten_barely_change_a_robust_fusion(name):
    @settings(max_examples=50)
    @given(st.integers(0, 2**32), st.sampled_from([1, 10, 1e6]))
    def holds(seed, strength):
        start, updates, honest = _attacked(seed, strength)

        fused = FUSIONS[name].fuse(start, updates, {}, **ROBUST[name])

        # As far from the middle of the honest as the furthest of them, at most.
        middle = honest.mean(axis=0)
        furthest = np.linalg.norm(honest - middle, axis=1).max()
        assert np.linalg.norm(fused.weights["w"] - middle) <= furthest

    holds()


def test_two_sign_flippers_of_ten_reverse_fedavg():
    start, updates, honest = _attacked(seed=1, strength=10)

    fused = FUSIONS["fedavg"].fuse(start, updates, {}).weights["w"]

    assert np.dot(fused - start["w"], honest.mean(axis=0) - start["w"]) < 0


def _attacked(seed, strength):
    """Return weights, ten updates and the honest ones: two went the other way, and far."""
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(50)
    way = rng.standard_normal(50)
    honest = start + way + 0.3 * rng.standard_normal((8, 50))
    liars = start - strength * (honest[:2] - start)
    sent = [*honest, *liars]
    names = rng.permutation([f"party-{i}" for i in range(10)])
    updates = [PartyUpdate(str(n), {"w": w}, 10) for n, w in zip(names, sent, strict=True)]
    return {"w": start}, updates, honest


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_updates_that_are_not_finite_are_refused(name, number):
    start = {"dense": np.ones((2, 2), np.float32), "bias": np.ones(3)}
    start["count"] = np.array(1)
    bad = {**start, "bias": np.float64([1, number, 1])}
    updates = [PartyUpdate(f"{i}", start, 1) for i in range(6)] + [PartyUpdate("bad", bad, 1)]

    with pytest.raises(AggregationError, match="^Party 'bad' sent bias with 1 of 3 numbers not"):
        fused_by(name, start, updates)


# --- the registry ---------------------------------------------------------------------------


def test_a_fusion_is_found_by_its_name():
    assert all(fusion.name == name for name, fusion in FUSIONS.items())


def test_missing_params_have_their_defaults(update):
    fused = FUSIONS["fedavgm"].fuse({"w": np.float32([0])}, [update("a", [1.0])], {}, momentum=0.5)

    assert fused.weights["w"] == [1]
    assert FUSIONS["fedavgm"].with_defaults({"momentum": 0.5}) == {
        "learning_rate": 1.0,
        "momentum": 0.5,
    }


def test_defaults_are_allowed_values():
    wrong = [
        (fusion.name, name)
        for fusion in FUSIONS.values()
        for name, param in fusion.params.items()
        if not param.allows(param.default)
    ]

    assert wrong == []


def test_an_unknown_param_is_reported_with_a_similar_one(update):
    with pytest.raises(AggregationError, match="not a param of fedavgm; did you mean momentum?"):
        FUSIONS["fedavgm"].fuse({}, [update("a", [1.0])], {}, momentun=0.5)
    assert FUSIONS["fedavg"].problem_of("mu", 1) == "not a param of fedavg; its params: none"


def test_an_invalid_value_is_reported_with_the_allowed_ones():
    trimmed = FUSIONS["trimmed_mean"]

    assert trimmed.problem_of("beta", 0.5) == "0.5; expected a number, at least 0 and below 0.5"
    assert FUSIONS["krum"].problem_of("byzantine_threshold", 1.0) == (
        "1.0; expected a whole number, at least 0"
    )
    assert FUSIONS["fed_plus"].problem_of("centre", "mode") == (
        "'mode'; expected one of mean, median, geometric_median"
    )


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, [1]])
def test_invalid_numbers_are_never_allowed(value):
    assert not FusionParam(1, "whole").allows(value)
    assert not FusionParam(1, "real").allows(value)


def test_the_ends_of_a_range_may_be_inclusive_or_exclusive():
    assert FusionParam(1, "real").allows(0)
    assert not FusionParam(1, "real", above_low=True).allows(0)
    assert not FusionParam(0.5, "real", high=1).allows(1)


@pytest.mark.parametrize(
    ("name", "params", "least"),
    [
        ("fedavg", {}, 1),
        ("coordinate_median", {}, 3),
        ("coordinate_median", {"byzantine_threshold": 2}, 5),
        ("trimmed_mean", {}, 3),
        ("trimmed_mean", {"beta": 0, "byzantine_threshold": 1}, 3),
        ("trimmed_mean", {"beta": 0}, 1),
        ("geometric_median", {}, 3),
        ("krum", {}, 5),
        ("krum", {"byzantine_threshold": 3}, 9),
        ("multi_krum", {"byzantine_threshold": 1, "num_chosen": 6}, 7),
        ("zeno", {"byzantine_threshold": 2}, 3),
        ("fed_plus", {}, 1),
        ("fed_plus", {"centre": "median"}, 3),
    ],
)
def test_a_fusion_states_how_many_parties_it_needs(name, params, least):
    assert FUSIONS[name].needs(params) == least


def test_a_median_of_two_parties_is_refused(update):
    with pytest.raises(AggregationError, match="median needs updates of at least 3 parties"):
        FUSIONS["coordinate_median"].fuse({}, [update("a", [1.0]), update("b", [1.0])], {})


def test_zeno_without_data_of_the_aggregator_is_refused(update):
    updates = [update("a", [1.0]), update("b", [1.0])]

    with pytest.raises(AggregationError, match="Zeno evaluates parties on the aggregator"):
        FUSIONS["zeno"].fuse({"w": np.float32([0])}, updates, {})


def test_only_zeno_uses_a_score(update):
    start, updates = {"w": np.float32([0])}, [update("a", [1.0]), update("b", [2.0])]

    def score(weights):
        return float(weights["w"][0])

    assert FUSIONS["zeno"].fuse(start, updates, {}, score=score).chosen == ("a",)
    assert FUSIONS["fedavg"].fuse(start, updates, {}, score=score).chosen == ("a", "b")


def test_the_registry_states_what_parties_must_do():
    def told(flag):
        return {name for name, fusion in FUSIONS.items() if getattr(fusion, flag)}

    assert told("keeps_own_weights") == {"fed_plus"}
    assert told("sends_gradients") == {"gradient_avg"}
    assert told("proximal") == {"fedprox", "fed_plus"}
    assert FUSIONS["fedprox"].proximal_mu({"mu": 0.25}) == 0.25
    assert FUSIONS["fed_plus"].proximal_mu({}) == 0.1
    assert FUSIONS["fedavg"].proximal_mu({}) == 0


def test_fusion_state_is_passed_between_rounds():
    @settings(max_examples=30)
    @given(rounds(least=3))
    def holds(drawn):
        start, updates = drawn

        first = fused_by("fedavgm", start, updates)
        again = fused_by("fedavgm", start, updates, first.state)

        # The same way once more, and 0.9 of the momentum.
        for name in ("bias", "dense"):
            v = first.state[f"momentum/{name}"]
            assert np.array_equal(again.state[f"momentum/{name}"], 0.9 * v + v)

    holds()
