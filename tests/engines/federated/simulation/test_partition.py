"""A data set dealt to parties: each example once, each party one at least."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.engines.federated.simulation.partition import (
    by_size,
    dirichlet,
    iid,
    shards,
    summary,
)
from elasticdl.errors import UsageError

SPLITS = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet, nearly one label": partial(dirichlet, alpha=1e-6),
    "dirichlet, nearly iid": partial(dirichlet, alpha=1e6),
    "shards": shards,
    "by_size": by_size,
    "by_size, all to the first": partial(by_size, skew=50.0),
}
DIGITS = np.random.default_rng(0).integers(0, 10, 1000)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_every_example_is_assigned_once_and_every_party_has_one(split):
    # Two shards each.
    sizes = st.integers(1, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(-2, 3), min_size=2 * n, max_size=60))
    )

    @settings(max_examples=30)
    @given(sizes, st.integers(0, 2**40))
    def holds(drawn, seed):
        num_parties, labels = drawn

        parts = split(np.array(labels), num_parties, seed)

        assert len(parts) == num_parties
        assert min(part.size for part in parts) >= 1
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))

    holds()


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_the_assignment_depends_only_on_the_seed(split):
    def dealt(seed):
        return [part.tolist() for part in split(DIGITS, 5, seed)]

    assert dealt(3) == dealt(3)
    assert dealt(3) != dealt(4)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_positions_are_ascending(split):
    assert all((np.diff(part) > 0).all() for part in split(DIGITS, 5, seed=0))


def test_iid_parties_have_equal_sizes_and_all_labels():
    found = summary(DIGITS, iid(DIGITS, 7, seed=1))

    assert sorted(set(found.sizes)) == [142, 143]
    assert found.counts.min() > 0


def test_a_smaller_alpha_makes_label_mixtures_more_different():
    def spread(alpha):
        counts = summary(DIGITS, dirichlet(DIGITS, 10, seed=2, alpha=alpha)).counts
        return np.mean(counts.max(axis=1) / counts.sum(axis=1))

    # The share of a party's most frequent label; 0.1 is a mixture like everybody's.
    assert spread(0.05) > 0.65
    assert 0.25 < spread(0.5) < 0.6
    assert spread(1000) < 0.16


def test_proportions_of_a_label_follow_the_distribution():
    # Of Dir(alpha) over K parties, a share has the variance (K-1) / K² / (K alpha + 1).
    labels = np.repeat(np.arange(400), 200)

    counts = summary(labels, dirichlet(labels, 4, seed=0, alpha=0.5)).counts

    assert np.var(counts / 200) == pytest.approx(3 / 16 / 3, rel=0.1)


def test_a_party_has_the_labels_of_its_shards():
    labels = np.repeat(np.arange(10), 40)

    counts = summary(labels, shards(labels, 10, seed=5, shards_per_party=2)).counts

    assert set(counts.sum(axis=1)) == {40}
    assert (counts > 0).sum(axis=1).max() == 2
    assert set(counts[counts > 0]) <= {20, 40}


def test_examples_of_a_shard_are_chosen_randomly():
    one, other = shards(np.zeros(100), 2, seed=0, shards_per_party=1)

    assert one.min() < 50 < one.max()
    assert other.min() < 50 < other.max()


def test_sizes_follow_a_power_law_in_descending_order():
    parts = by_size(np.zeros(1000), 4, seed=0, skew=2.0)

    sizes = [part.size for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] / sizes[3] == pytest.approx(16, rel=0.05)


def test_without_skew_all_sizes_are_equal():
    assert {part.size for part in by_size(np.zeros(100), 4, seed=0, skew=0)} == {25}


def test_too_few_examples_are_refused_with_both_numbers():
    with pytest.raises(UsageError, match="^2 examples for 3 parties; each needs at least one"):
        iid(np.zeros(2), 3, seed=0)
    with pytest.raises(UsageError, match="^5 examples for 6 shards"):
        shards(np.zeros(5), 3, seed=0)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (partial(dirichlet, alpha=0.0), "alpha is 0.0"),
        (partial(dirichlet, alpha=float("nan")), "alpha is nan"),
        (partial(shards, shards_per_party=0), "shards_per_party is 0"),
        (partial(by_size, skew=-1.0), "skew is -1.0"),
    ],
)
def test_an_invalid_param_is_refused(split, said):
    with pytest.raises(UsageError, match=f"^{said}; expected"):
        split(DIGITS, 3, 0)


@pytest.mark.parametrize("num_parties", [0, -1])
@pytest.mark.parametrize("split", [iid, dirichlet, shards, by_size])
def test_zero_parties_are_refused(split, num_parties):
    with pytest.raises(UsageError, match=f"^{num_parties} parties; expected at least 1"):
        split(DIGITS, num_parties, 0)


def test_one_hot_labels_are_refused_with_advice():
    with pytest.raises(UsageError, match=r"shape \[3, 2\]; expected one label per example.*argmax"):
        iid(np.zeros((3, 2)), 2, seed=0)


def test_string_labels_are_counted():
    found = summary(np.array(["cat", "dog", "cat"]), [np.array([0]), np.array([1, 2])])

    assert found.labels == ("cat", "dog")
    assert found.counts.tolist() == [[1, 0], [1, 1]]
    assert found.sizes == [1, 2]
