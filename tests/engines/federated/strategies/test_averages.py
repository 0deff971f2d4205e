"""Means of parties."""

import numpy as np
import pytest

from elasticdl.engines.federated.strategies.averages import (
    fedavg,
    fedprox,
    gradient_avg,
    iter_avg,
)
from elasticdl.errors import AggregationError

ZERO = {"w": np.float64([0])}


def test_a_party_with_twice_the_examples_counts_twice_in_fedavg(update):
    fused = fedavg(ZERO, [update("a", [0.0]), update("b", [3.0], 2)], {})

    assert fused.weights["w"] == [2]
    assert fused.chosen == ("a", "b")


def test_every_party_counts_once_in_iter_avg(update):
    fused = iter_avg(ZERO, [update("a", [0.0]), update("b", [3.0], 2)], {})

    assert fused.weights["w"] == [1.5]


def test_fedprox_at_the_server_is_fedavg(update):
    updates = [update("a", [0.0]), update("b", [3.0], 2)]

    assert fedprox(ZERO, updates, {}, mu=7.0).weights == fedavg(ZERO, updates, {}).weights


def test_a_gradient_step_follows_the_negative_weighted_mean(update):
    start = {"w": np.float32([1.0]), "statistic": np.float32([5.0]), "count": np.int64([3])}

    fused = gradient_avg(start, [update("a", [0.0]), update("b", [3.0], 2)], {}, learning_rate=0.25)

    assert {name: array.tolist() for name, array in fused.weights.items()} == {
        "w": [0.5],
        "statistic": [5.0],
        "count": [3],
    }


@pytest.mark.parametrize("start", [{"v": np.float32([1])}, {"w": np.float32([1, 2])}])
def test_a_gradient_of_a_non_parameter_is_refused(update, start):
    with pytest.raises(AggregationError, match="sent a gradient of w"):
        gradient_avg(start, [update("a", [1.0])], {}, learning_rate=1.0)
