"""Central differential privacy: what one party changes in a round is bounded, and noise hides it.

    updates -> clip each -> mean, each counted once -> noise -> the fusion's own step -> Fused

The noise is added to the mean, before the fusion's step. So momentum and steps of a server's
optimizer know of the parties only what the noise lets through, and whatever is made of a round's
model later costs nothing more. (Flower 1.41 adds it after a server's step, where a party's bound
is not known; its accounting refuses that.)

What it hides is a party's update from those who see the global models. The aggregator itself sees
every update, and metrics and numbers of examples have no noise. Numbers are floating-point: no
claim is made of what their last bits tell (Mironov, 2012).

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

from elasticdl.engines.federated.updates import (
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
    from elasticdl.engines.federated.aggregation import Fusion
    from elasticdl.job import CentralPrivacy

Noise: TypeAlias = Callable[[tuple[int, ...]], Floats]
"""Shape -> standard normal numbers."""

_VARIANCE = re.compile(r"(^|[/._])(moving_variance|running_var)$")


def system_noise(shape: tuple[int, ...]) -> Floats:
    """Draw standard normal numbers from the operating system's randomness.

    By Box and Muller (1958, https://doi.org/10.1214/aoms/1177706645), whole arrays at once. There
    is no generator whose state somebody could work out: of a weight that no party moved, all the
    parties know the noise.

    Args:
        shape: Of the array.
    """
    size = math.prod(shape)
    num_pairs = (size + 1) // 2
    drawn = np.frombuffer(os.urandom(16 * num_pairs), np.uint64).reshape(2, num_pairs) >> 11
    # From above 0 to 1: 0 has no logarithm.
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
    """Average the parties' weights so that the result depends little on any one of them.

    DP-FedAvg with a fixed norm (McMahan et al., 2018, algorithm 1,
    https://arxiv.org/abs/1710.06963) where all parties take part: with d a party's change of the
    global weights, w + mean of d * min(1, S / |d|) + noise of standard deviation z * S / n. |d| is
    over all arrays of real numbers; every party counts once, because n bounds a party's part then.

    Args:
        global_weights: What the parties started from.
        updates: One a party, in any order; their number is n.
        privacy: S (clipping_norm) and z (noise_multiplier).
        noise: What is drawn from.

    Returns:
        New arrays with the shapes and dtypes of the global weights. Whole numbers stay as they
        are there: a party's own would be in the model without noise. A variance that noise made
        negative is 0.

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
    shares = [_kept(global_weights, update, privacy) / len(ordered) for update in ordered]
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


def _kept(global_weights: Weights, update: PartyUpdate, privacy: CentralPrivacy) -> float:
    """Return the part of a party's change that clipping leaves: 1 for all of it."""
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
    """Return what is called as `Fusion.fuse` is, and knows of the parties a private mean only.

    Raises:
        AggregationError: The fusion needs more of the parties than their mean.
    """
    if not fusion.averages:
        raise AggregationError(
            f"Central differential privacy is not there for the fusion {fusion.name}: it needs "
            "more of the parties than the mean of their weights. Take another fusion."
        )

    def fuse(
        global_weights: Weights, updates: Sequence[PartyUpdate], state: FusionState, **params: Any
    ) -> Fused:
        mean = private_mean(global_weights, updates, privacy, noise)
        fused = fusion.fuse(global_weights, [PartyUpdate("all", mean, 1)], state, **params)
        return replace(fused, chosen=tuple(sorted(update.party for update in updates)))

    return fuse


def in_words(privacy: CentralPrivacy, num_rounds: int) -> str:
    """Return what is done, and all that says how private it is, in one line.

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
