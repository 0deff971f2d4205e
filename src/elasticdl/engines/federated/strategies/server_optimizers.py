"""Fusions with a server optimizer, which updates the weights from the parties' mean change.

The server optimizer takes the negative of this change for a gradient. Its state, such as the
momentum, is the fusion's state, kept from round to round. Like plain means, these fusions trust
every party.

Callers: `fusions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from elasticdl.engines.federated.strategies.updates import (
    Floats,
    Fused,
    FusionState,
    PartyUpdate,
    Weights,
    combined,
    in_order,
    is_statistic,
    means,
    names_of,
    rounded,
    shares_by_examples,
)
from elasticdl.errors import AggregationError

_MOMENTUM, _VARIANCE = "momentum", "variance"


def fedavgm(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    learning_rate: float,
    momentum: float,
) -> Fused:
    """Move the global weights towards the parties' mean, with momentum.

    FedAvgM (Hsu et al., 2019, section 4.3, https://arxiv.org/abs/1909.06335). With d the mean of
    (global weights - a party's weights), each party counted by its number of examples:

        v = momentum * v + d           0 before the first round
        w - learning_rate * v          the next global weights

    With momentum 0 and learning rate 1 it is `fedavg`.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: v by parameter, as the last round returned it; empty in the first.
        learning_rate: Learning rate of the server's step.
        momentum: Fraction of v that is kept from one round to the next.

    Returns:
        Arrays with the shapes and dtypes of the updates, and v as the state. Layers' moving means
        and variances are plain means of the parties.

    Raises:
        AggregationError: The updates cannot be fused, the state belongs to another model, or a
            result is not finite.

    Example:
        >>> north = PartyUpdate("north", {"w": np.float32([1.0])}, num_examples=1)
        >>> first = fedavgm({"w": np.float32([0.0])}, [north], {}, learning_rate=1.0, momentum=0.9)
        >>> first.weights, first.state
        ({'w': array([1.], dtype=float32)}, {'momentum/w': array([-1.])})
    """

    def step(name: str, change: Floats, before: FusionState) -> tuple[Floats, FusionState]:
        velocity = momentum * _remembered(before, _MOMENTUM, name, change, 0.0) - change
        return -learning_rate * velocity, {f"{_MOMENTUM}/{name}": velocity}

    return _stepped(global_weights, updates, state, step)


def fedadagrad(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    learning_rate: float,
    beta_1: float,
    epsilon: float,
) -> Fused:
    """Update the global weights by an Adagrad step on the parties' mean change.

    FedAdagrad (Reddi et al., 2021, algorithm 2, https://arxiv.org/abs/2003.00295). Like `fedadam`,
    but the next v is v + d². Arguments (without `beta_2`), results and errors are the same.

    Example:
        >>> north = PartyUpdate("north", {"w": np.float64([1.0])}, num_examples=1)
        >>> rates = {"learning_rate": 1.0, "beta_1": 0.0, "epsilon": 1e-9}
        >>> fedadagrad({"w": np.float64([0.0])}, [north], {}, **rates).state["variance/w"]
        array([1.])
    """
    return _adaptive(
        global_weights,
        updates,
        state,
        rates=(learning_rate, beta_1, epsilon),
        variance=lambda before, square: before + square,
    )


def fedadam(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> Fused:
    """Update the global weights by an Adam step on the parties' mean change.

    FedAdam (Reddi et al., 2021, algorithm 2, https://arxiv.org/abs/2003.00295). With d the mean of
    (a party's weights - global weights), each party counted by its number of examples:

        m = beta_1 * m + (1 - beta_1) * d              0 before the first round
        v = beta_2 * v + (1 - beta_2) * d²             epsilon² before the first round
        w + learning_rate * m / (sqrt(v) + epsilon)    without bias correction

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: m and v by parameter, as the last round returned them; empty in the first.
        learning_rate: Learning rate of the server's step.
        beta_1: Fraction of m that is kept from one round to the next.
        beta_2: Fraction of v that is kept from one round to the next.
        epsilon: Degree of adaptivity, the paper's tau: the larger, the less adaptive.

    Returns:
        Arrays with the shapes and dtypes of the updates, and m and v as the state. Layers' moving
        means and variances are plain means of the parties.

    Raises:
        AggregationError: The updates cannot be fused, the state belongs to another model, or a
            result is not finite.

    Example:
        >>> north = PartyUpdate("north", {"w": np.float64([3.0])}, num_examples=1)
        >>> rates = {"learning_rate": 1.0, "beta_1": 0.5, "beta_2": 0.0, "epsilon": 1.0}
        >>> fedadam({"w": np.float64([0.0])}, [north], {}, **rates).weights
        {'w': array([0.375])}
    """
    return _adaptive(
        global_weights,
        updates,
        state,
        rates=(learning_rate, beta_1, epsilon),
        variance=lambda before, square: beta_2 * before + (1 - beta_2) * square,
    )


def fedyogi(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> Fused:
    """Update the global weights by a Yogi step on the parties' mean change.

    FedYogi (Reddi et al., 2021, algorithm 2, https://arxiv.org/abs/2003.00295). Like `fedadam`,
    but the next v is v - (1 - beta_2) * d² * sign(v - d²). Arguments, results and errors are the
    same.

    Example:
        >>> north = PartyUpdate("north", {"w": np.float64([3.0])}, num_examples=1)
        >>> rates = {"learning_rate": 1.0, "beta_1": 0.5, "beta_2": 0.5, "epsilon": 1.0}
        >>> fedyogi({"w": np.float64([0.0])}, [north], {}, **rates).state["variance/w"]
        array([5.5])
    """
    return _adaptive(
        global_weights,
        updates,
        state,
        rates=(learning_rate, beta_1, epsilon),
        variance=lambda before, square: before - (1 - beta_2) * square * np.sign(before - square),
    )


def _adaptive(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    rates: tuple[float, float, float],
    variance: Callable[[Floats, Floats], Floats],
) -> Fused:
    """Take a step of FedAdagrad, FedAdam or FedYogi, which differ only in `variance`.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: State of the optimizer.
        rates: (learning rate, beta_1, epsilon).
        variance: Function (v, d²) -> next v, in the symbols of `fedadam`.
    """
    learning_rate, beta_1, epsilon = rates

    def step(name: str, change: Floats, before: FusionState) -> tuple[Floats, FusionState]:
        m = beta_1 * _remembered(before, _MOMENTUM, name, change, 0.0) + (1 - beta_1) * change
        v = variance(_remembered(before, _VARIANCE, name, change, epsilon**2), change * change)
        remembered = {f"{_MOMENTUM}/{name}": m, f"{_VARIANCE}/{name}": v}
        return learning_rate * m / (np.sqrt(v) + epsilon), remembered

    return _stepped(global_weights, updates, state, step)


def _stepped(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    step: Callable[[str, Floats, FusionState], tuple[Floats, FusionState]],
) -> Fused:
    """Return the global weights after a step of the server optimizer for each parameter.

    Other arrays, such as counters and layers' moving means, are fused as in `fedavg`.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: State of the optimizer.
        step: Function (name of a parameter, mean change of the parties, state) -> change to add to
            the global weights, and the parameter's part of the new state.
    """
    ordered = in_order(updates, global_weights)
    weights = combined(ordered, shares_by_examples(ordered))
    remembered: dict[str, Floats] = {}
    for name, mean in means(ordered, ordered[0].weights).items():
        if is_statistic(name):
            continue
        start = global_weights[name].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            move, kept = step(name, mean - start, state)
            weights[name] = rounded(name, start + move, weights[name].dtype)
        remembered.update({key: np.asarray(value) for key, value in kept.items()})
    return Fused(weights, remembered, names_of(ordered))


def _remembered(state: FusionState, what: str, name: str, like: Floats, first: float) -> Floats:
    """Return a quantity that the optimizer stores for a parameter, such as its momentum.

    In the first round, when nothing is stored, return an array filled with `first`.

    Args:
        state: The fusion's state; empty in the first round.
        what: Name of the quantity, such as `momentum`.
        name: Name of the parameter.
        like: An array of the parameter's shape.
        first: Value of every element in the first round.

    Raises:
        AggregationError: The state belongs to another model or fusion.
    """
    if not state:
        return np.full(like.shape, first)
    found = state.get(f"{what}/{name}")
    if found is None or found.shape != like.shape:
        there = "nothing" if found is None else f"shape {list(found.shape)}"
        raise AggregationError(
            f"The fusion's state has {there} for {what}/{name}; expected shape {list(like.shape)}. "
            "It belongs to another model or fusion: start a new training run with another output."
        )
    return found
