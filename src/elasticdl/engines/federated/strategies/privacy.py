"""Central differential privacy: clips each party's change and adds noise to the mean.

    updates -> clip each -> mean, each counted once -> noise -> the fusion's own step -> Fused

The noise is added to the mean, before the fusion's step. The server optimizer's momentum and steps
therefore depend on the parties only through the noisy mean, and later use of a round's model costs
no more privacy (post-processing). Flower 1.41 adds the noise after the server step, where the
influence of one party has no known bound.

This hides a party's update from everyone who sees the global models. The aggregator itself sees
every update, and metrics and example counts have no noise. The numbers are floating-point: there
is no guarantee about what their lowest bits reveal (Mironov, 2012).

Callers: `aggregator.py`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.engines.federated.strategies.updates import (
    Array,
    Floats,
    Fused,
    FusionState,
    PartyUpdate,
    Weights,
    averaged_names,
    in_order,
    rounded,
)
from elasticdl.errors import AggregationError

if TYPE_CHECKING:
    from elasticdl.engines.federated.strategies.fusions import Fusion
    from elasticdl.job import CentralPrivacy

Noise: TypeAlias = Callable[[tuple[int, ...]], Floats]
"""Shape -> standard normal numbers of that shape."""

_VARIANCE = re.compile(r"(^|[/._])(moving_variance|running_var)$")


def system_noise(shape: tuple[int, ...]) -> Floats:
    """Draw standard normal numbers from the operating system's randomness.

    It uses the Box-Muller transform (1958, https://doi.org/10.1214/aoms/1177706645) on whole
    arrays. A pseudorandom generator would be unsafe: every party can see the noise that is added to
    a weight that no party changed, and could compute the generator's state from it.

    Args:
        shape: Shape of the array.
    """
    size = math.prod(shape)
    num_pairs = (size + 1) // 2
    drawn = np.frombuffer(os.urandom(16 * num_pairs), np.uint64).reshape(2, num_pairs) >> 11
    # In (0, 1], because 0 has no logarithm.
    radius = np.sqrt(-2.0 * np.log((drawn[0] + 1.0) * 2.0**-53))
    angle = drawn[1] * (2.0 * math.pi * 2.0**-53)
    numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return numbers[:size].reshape(shape)


def private_mean(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    privacy: CentralPrivacy,
    noise: Noise = system_noise,
) -> dict[str, Array]:
    """Average the parties' weights with differential privacy: clip the changes and add noise.

    DP-FedAvg with a fixed clipping norm (McMahan et al., 2018, algorithm 1,
    https://arxiv.org/abs/1710.06963), with all parties taking part. If w are the global weights and
    d is a party's change of them, the result is

        w + mean over the parties of d * min(1, S / |d|) + noise of standard deviation z * S / n

    The norm |d| is taken over all arrays of real numbers together. Every party counts once, so that
    none can move the mean by more than S / n.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order; their number is n.
        privacy: S (clipping_norm) and z (noise_multiplier).
        noise: Function (shape) -> array of noise.

    Returns:
        New arrays with the shapes and dtypes of the global weights. Arrays of whole numbers keep
        their global values: a party's values would enter the model without noise. If the noise
        makes a layer's moving variance negative, the variance is set to 0.

    Raises:
        AggregationError: The updates cannot be averaged (`updates.in_order`).

    Example:
        >>> from elasticdl.job import CentralPrivacy
        >>> start = {"w": np.float32([0.0, 0.0])}
        >>> north = PartyUpdate("north", {"w": np.float32([30.0, 40.0])}, num_examples=9)
        >>> south = PartyUpdate("south", {"w": np.float32([0.0, 1.0])}, num_examples=1)
        >>> private_mean(start, [north, south], CentralPrivacy(5.0, noise_multiplier=0.0))
        {'w': array([1.5, 2.5], dtype=float32)}
    """
    ordered = in_order(updates, global_weights)
    shares = [
        _clipping_factor(global_weights, update, privacy) / len(ordered) for update in ordered
    ]
    deviation = privacy.noise_multiplier * privacy.clipping_norm / len(ordered)
    weights = {name: array.copy() for name, array in global_weights.items()}
    for name in averaged_names(global_weights):
        start = global_weights[name]
        mean: Floats = start.astype(np.float64)
        for update, share in zip(ordered, shares, strict=True):
            mean = mean + share * _change(start, update.weights[name])
        if deviation:
            mean = mean + deviation * noise(start.shape)
            if _VARIANCE.search(name):
                mean = np.maximum(mean, 0.0)
        weights[name] = rounded(name, mean, start.dtype)
    return weights


def _change(start: Array, after: Array) -> Floats:
    change: Floats = after.astype(np.float64) - start.astype(np.float64)
    return change


def _clipping_factor(
    global_weights: Weights, update: PartyUpdate, privacy: CentralPrivacy
) -> float:
    """Return the factor by which a party's change is scaled so that its norm is at most S.

    It is at most 1: a change within the clipping norm S is not scaled.
    """
    squared = 0.0
    with np.errstate(over="ignore"):
        for name in averaged_names(global_weights):
            change = _change(global_weights[name], update.weights[name])
            squared += float(np.sum(change * change))
    norm = math.sqrt(squared)
    return 1.0 if norm <= privacy.clipping_norm else privacy.clipping_norm / norm


def privately(
    fusion: Fusion, privacy: CentralPrivacy, noise: Noise = system_noise
) -> Callable[..., Fused]:
    """Wrap a fusion so that it receives only the private mean of the parties' weights.

    The fusion gets the mean as if it were the update of a single party.

    Args:
        fusion: The fusion; it must need only the mean of the parties' weights.
        privacy: The clipping norm and the noise multiplier.
        noise: Function (shape) -> array of noise.

    Returns:
        A function to call instead of `fusion.fuse`, with the same arguments.

    Raises:
        AggregationError: The fusion needs more than the mean of the parties' weights.
    """
    if not fusion.averages:
        raise AggregationError(
            f"Central differential privacy is not supported for the fusion {fusion.name}, which "
            "needs the weights of each party, not only their mean. Use another fusion."
        )

    def fuse(
        global_weights: Weights, updates: Sequence[PartyUpdate], state: FusionState, **params: Any
    ) -> Fused:
        mean = private_mean(global_weights, updates, privacy, noise)
        fused = fusion.fuse(global_weights, [PartyUpdate("all", mean, 1)], state, **params)
        return replace(fused, chosen=tuple(sorted(update.party for update in updates)))

    return fuse


def in_words(privacy: CentralPrivacy, num_rounds: int) -> str:
    """Describe the privacy mechanism in one line, with all parameters of its guarantee.

    Example:
        >>> from elasticdl.job import CentralPrivacy
        >>> print(in_words(CentralPrivacy(1.0, 0.5), 10))
        Central differential privacy: updates clipped to 1, noise multiplier 0.5; 10 rounds, all \
parties each round, each counted once.
    """
    return (
        f"Central differential privacy: updates clipped to {privacy.clipping_norm:g}, noise "
        f"multiplier {privacy.noise_multiplier:g}; {num_rounds:,} rounds, all parties each round, "
        "each counted once."
    )
