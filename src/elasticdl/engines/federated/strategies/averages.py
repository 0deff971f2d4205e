"""Fusions that are means of the parties' weights; FedSGD's is a mean of gradients.

All of them trust every party: a single bad update can move the result arbitrarily far. The fusions
in `robust.py` limit this.

Callers: `fusions.py`, `robust.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elasticdl.engines.federated.strategies.updates import (
    Array,
    Fused,
    FusionState,
    PartyUpdate,
    Weights,
    combined,
    equal_shares,
    in_order,
    is_averaged,
    means,
    names_of,
    rounded,
    shares_by_examples,
)
from elasticdl.errors import AggregationError


def iter_avg(global_weights: Weights, updates: Sequence[PartyUpdate], state: FusionState) -> Fused:
    """Average the parties' weights, each counted once.

    This is the mean of parallelized SGD (Zinkevich et al., 2010,
    https://papers.nips.cc/paper/4006-parallelized-stochastic-gradient-descent). The paper takes it
    once, after training; here, every round ends with it.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: Returned unchanged: this fusion has no state.

    Returns:
        Arrays with the shapes and dtypes of the updates; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> north = PartyUpdate("north", {"w": np.float32([1.0, 1.0])}, num_examples=1)
        >>> south = PartyUpdate("south", {"w": np.float32([4.0, 4.0])}, num_examples=2)
        >>> iter_avg(north.weights, [north, south], {}).weights
        {'w': array([2.5, 2.5], dtype=float32)}
    """
    ordered = in_order(updates, global_weights)
    return Fused(combined(ordered, equal_shares(ordered)), state, names_of(ordered))


def fedavg(global_weights: Weights, updates: Sequence[PartyUpdate], state: FusionState) -> Fused:
    """Average the parties' weights, each counted by its number of examples.

    The server step of FedAvg (McMahan et al., 2017, algorithm 1,
    https://arxiv.org/abs/1602.05629).

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: Returned unchanged: this fusion has no state.

    Returns:
        Arrays with the shapes and dtypes of the updates; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> north = PartyUpdate("north", {"w": np.float32([1.0, 1.0])}, num_examples=1)
        >>> south = PartyUpdate("south", {"w": np.float32([4.0, 4.0])}, num_examples=2)
        >>> fedavg(north.weights, [north, south], {}).weights
        {'w': array([3., 3.], dtype=float32)}
    """
    ordered = in_order(updates, global_weights)
    return Fused(combined(ordered, shares_by_examples(ordered)), state, names_of(ordered))


def fedprox(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    mu: float,
) -> Fused:
    """Average as `fedavg` does, with parties that train with FedProx's proximal term.

    FedProx (Li et al., 2020, algorithm 2, https://arxiv.org/abs/1812.06127) adds
    mu/2 * |w - global weights|² to every party's loss. The server step is that of FedAvg, so `mu`
    has no effect here. It is an argument because all params of a fusion are passed to its function.
    The parties receive it through `FUSIONS["fedprox"].proximal_mu`.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: Returned unchanged: this fusion has no state.
        mu: Strength of the proximal term.

    Returns:
        Arrays with the shapes and dtypes of the updates; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> north = PartyUpdate("north", {"w": np.float32([1.0])}, num_examples=1)
        >>> fedprox(north.weights, [north], {}, mu=0.1).weights
        {'w': array([1.], dtype=float32)}
    """
    del mu
    return fedavg(global_weights, updates, state)


def gradient_avg(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    learning_rate: float,
) -> Fused:
    """Take one gradient descent step from the global weights, with the parties' mean gradient.

    FedSGD (McMahan et al., 2017, section 2, https://arxiv.org/abs/1602.05629):
    w - learning_rate * mean of the gradients, each party counted by its number of examples.

    Args:
        global_weights: The weights at which the gradients were computed.
        updates: One per party. Their `weights` are gradients of the mean loss over the party's
            examples, by the name of the parameter. Arrays without a gradient, such as counters and
            the moving means of layers, keep their global values.
        state: Returned unchanged: this fusion has no state.
        learning_rate: Learning rate of the step.

    Returns:
        Arrays with the names, shapes and dtypes of the global weights; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused, or a gradient belongs to no parameter.

    Example:
        >>> gradient = PartyUpdate("north", {"w": np.float32([2.0])}, num_examples=3)
        >>> weights = {"w": np.float32([1.0]), "seed": np.int64([7])}
        >>> gradient_avg(weights, [gradient], {}, learning_rate=0.25).weights
        {'w': array([0.5], dtype=float32), 'seed': array([7])}
    """
    ordered = in_order(updates)
    sent = ordered[0].weights
    for name, gradient in sent.items():
        at = global_weights.get(name)
        if at is None or at.shape != gradient.shape or not is_averaged(at.dtype):
            raise AggregationError(
                f"The parties sent a gradient of {name} with shape {list(gradient.shape)}; the "
                "global model has "
                f"{'no such parameter' if at is None else f'{at.dtype.name}{list(at.shape)}'}. "
                "All parties must train the same model: compare the `model:` section of their "
                "configs."
            )
    mean = means(ordered, sent)
    weights: dict[str, Array] = {name: array.copy() for name, array in global_weights.items()}
    for name, gradient in mean.items():
        start = global_weights[name]
        moved = start.astype(np.float64) - learning_rate * gradient
        weights[name] = rounded(name, moved, start.dtype)
    return Fused(weights, state, names_of(ordered))
