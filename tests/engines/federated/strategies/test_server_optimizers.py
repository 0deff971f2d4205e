"""Steps that a server makes from the mean change of the parties."""

import numpy as np
import pytest

from elasticdl.engines.federated.strategies.server_optimizers import (
    fedadagrad,
    fedadam,
    fedavgm,
    fedyogi,
)
from elasticdl.engines.federated.strategies.updates import PartyUpdate
from elasticdl.errors import AggregationError

ZERO = {"w": np.float64([0])}


def test_momentum_continues_in_the_next_round(update):
    rates = {"learning_rate": 1.0, "momentum": 0.5}
    first = fedavgm(ZERO, [update("a", [4.0], dtype=np.float64)], {}, **rates)
    # Nobody moves any more; what is left is momentum.
    second = fedavgm(first.weights, [update("a", first.weights["w"])], first.state, **rates)

    assert first.weights["w"] == [4]
    assert second.weights["w"] == [6]


def test_two_steps_of_fedadam_match_the_paper(update):
    rates = {"learning_rate": 0.5, "beta_1": 0.5, "beta_2": 0.75, "epsilon": 1.0}
    updates = [update("a", [0.0], 1, np.float64), update("b", [4.0], 3, np.float64)]

    first = fedadam({"w": np.float64([1.0])}, updates, {}, **rates)
    # d = 3 - 1 = 2; m = 1; v = 0.75 * 1 + 0.25 * 4 = 1.75
    assert first.weights["w"] == pytest.approx([1 + 0.5 * 1 / (1.75**0.5 + 1)], abs=1e-15)

    second = fedadam(first.weights, updates, first.state, **rates)
    start = first.weights["w"][0]
    d = 3 - start
    m, v = 0.5 * 1 + 0.5 * d, 0.75 * 1.75 + 0.25 * d**2
    assert second.weights["w"] == pytest.approx([start + 0.5 * m / (v**0.5 + 1)], abs=1e-15)
    assert {name: array.tolist() for name, array in second.state.items()} == {
        "momentum/w": pytest.approx([m]),
        "variance/w": pytest.approx([v]),
    }


def test_yogi_and_adagrad_differ_from_adam_in_the_variance(update):
    rates = {"learning_rate": 1.0, "beta_1": 0.0, "epsilon": 1.0}
    updates = [update("a", [2.0], dtype=np.float64)]

    # Before: v = 1; d² = 4.
    assert fedadam(ZERO, updates, {}, beta_2=0.75, **rates).state["variance/w"] == [1.75]
    assert fedyogi(ZERO, updates, {}, beta_2=0.75, **rates).state["variance/w"] == [2]
    assert fedadagrad(ZERO, updates, {}, **rates).state["variance/w"] == [5]


def test_yogi_lets_the_variance_shrink_slowly(update):
    rates = {"learning_rate": 1.0, "beta_1": 0.0, "beta_2": 0.75, "epsilon": 2.0}

    fused = fedyogi(ZERO, [update("a", [1.0], dtype=np.float64)], {}, **rates)

    # Before: v = 4; d² = 1.
    assert fused.state["variance/w"] == [3.75]


@pytest.mark.parametrize("name", ["bn/moving_variance", "bn.running_var"])
def test_a_server_step_keeps_layer_statistics_as_means(name):
    start = {name: np.float32([1.0]), "w": np.float32([0.0])}
    sent = PartyUpdate("a", {name: np.float32([0.1]), "w": np.float32([1.0])}, 1)
    rates = {"learning_rate": 5.0, "momentum": 0.9}

    fused = fedavgm(start, [sent], {}, **rates)

    assert fused.weights[name] == np.float32([0.1])
    assert fused.weights["w"] == [5]
    assert fused.state.keys() == {"momentum/w"}


def test_a_state_of_another_model_is_refused(update):
    rates = {"learning_rate": 1.0, "momentum": 0.9}

    with pytest.raises(AggregationError, match="has nothing for momentum/w"):
        fedavgm(ZERO, [update("a", [1.0])], {"momentum/v": np.zeros(1)}, **rates)
    with pytest.raises(AggregationError, match=r"has shape \[2\] for momentum/w"):
        fedavgm(ZERO, [update("a", [1.0])], {"momentum/w": np.zeros(2)}, **rates)


def test_a_step_that_overflows_is_refused(update):
    with pytest.raises(AggregationError, match="has a learning rate, lower it"):
        fedavgm(ZERO, [update("a", [1.0])], {}, learning_rate=1e300, momentum=0.0)


def test_the_state_consists_of_float64_arrays(update):
    sent = PartyUpdate("a", {"w": np.float32(2.0).reshape(())}, 1)
    rates = {"learning_rate": 1.0, "beta_1": 0.9, "beta_2": 0.9, "epsilon": 1.0}

    fused = fedadam({"w": np.zeros((), np.float32)}, [sent], {}, **rates)

    assert {(type(a), a.dtype.name) for a in fused.state.values()} == {(np.ndarray, "float64")}
