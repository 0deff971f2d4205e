"""Fusions that stay near the middle of the parties while some send anything; and Fed+.

How many may lie is a param, and each function says how many parties it takes. `num_examples` is
what a party says of itself, so only `geometric_median` counts by it, as its paper does.

A middle is near all honest parties only if they are near each other. Where their data differ,
`byzantine_threshold` lets the three middles mix updates with their nearest first (`mixed`).

Callers: `aggregation.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elasticdl.engines.federated.averages import fedavg
from elasticdl.engines.federated.updates import (
    Floats,
    Fused,
    FusionState,
    PartyUpdate,
    Weights,
    by_name,
    combined,
    in_order,
    names_of,
    shares_by_examples,
    squared_distances,
)
from elasticdl.errors import AggregationError

_MOST_STEPS = 1000
_CENTRES = ("mean", "median", "geometric_median")


def mixed(
    global_weights: Weights, updates: Sequence[PartyUpdate], num_liars: int
) -> list[PartyUpdate]:
    """Return the mean of each update and those nearest to it, n - f of them with itself.

    NNM (Allouah et al., 2023, https://arxiv.org/abs/2302.01772): honest parties whose data differ
    come near each other, and who lies is a part of few means. Each counts once.

    Args:
        global_weights: What the parties started from.
        updates: One a party, in any order.
        num_liars: f, below half of the parties; 0 changes nothing.

    Returns:
        As many updates, sorted by party, rounded to their dtypes.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 0.0, "b": 3.0, "c": 6.0, "liar": -903.0}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> [float(m.weights["w"][0]) for m in mixed({"w": np.float32([0])}, updates, 1)]
        [3.0, 3.0, 3.0, -300.0]
    """
    ordered = in_order(updates, global_weights)
    if not num_liars:
        return ordered
    num_near = len(ordered) - num_liars
    nearest = np.argsort(squared_distances(global_weights, ordered), axis=1, kind="stable")
    made = []
    for update, near in zip(ordered, nearest[:, :num_near], strict=True):
        shares = np.zeros(len(ordered))
        shares[near] = 1 / num_near
        made.append(replace(update, weights=combined(ordered, shares)))
    return made


def coordinate_median(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    byzantine_threshold: int = 0,
) -> Fused:
    """Return of each single number the median over the parties, each counted once.

    Yin et al., 2018, algorithm 1, option I (https://arxiv.org/abs/1803.01498). Fewer than half of
    the parties may lie; a median of two is their mean, so it takes three to be of use.

    Args:
        global_weights: What the parties started from.
        updates: One a party, in any order.
        state: Given back unchanged: nothing is remembered.
        byzantine_threshold: How many may lie where parties differ; see `mixed`. 0 mixes nothing.

    Returns:
        Arrays with the shapes and dtypes of the updates; all parties are in them.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "liar": -1e9}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> coordinate_median({"w": np.float32([0])}, updates, {}).weights
        {'w': array([1.], dtype=float32)}
    """
    ordered = mixed(global_weights, updates, byzantine_threshold)
    weights = by_name(ordered, lambda name: np.asarray(np.median(_stacked(ordered, name), axis=0)))
    return Fused(weights, state, names_of(ordered))


def trimmed_mean(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    beta: float,
    byzantine_threshold: int = 0,
) -> Fused:
    """Return of each single number the mean without the highest and the lowest of the parties.

    Yin et al., 2018, algorithm 1, option II (https://arxiv.org/abs/1803.01498). Of n parties,
    beta * n are left out at each end, rounded down, but at least one if there are three: else
    it would be a plain mean without saying so. As many may lie as are left out at one end.

    Args:
        global_weights: What the parties started from.
        updates: One a party, in any order.
        state: Given back unchanged: nothing is remembered.
        beta: Which part of the parties is left out at each end; below 0.5. 0 is `iter_avg`.
        byzantine_threshold: How many may lie where parties differ; see `mixed`. 0 mixes nothing.

    Returns:
        Arrays with the shapes and dtypes of the updates; all parties are in them.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "c": 6.0, "liar": -1e9}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> trimmed_mean({"w": np.float32([0])}, updates, {}, beta=0.25).weights
        {'w': array([1.5], dtype=float32)}
    """
    ordered = mixed(global_weights, updates, byzantine_threshold)
    num_parties = len(ordered)
    num_trimmed = num_trimmed_of(num_parties, beta)
    # Sums over different numbers of each place: as one sum of shares it could not be written.
    kept = slice(num_trimmed, num_parties - num_trimmed)

    def fused(name: str) -> Floats:
        return np.asarray(np.sort(_stacked(ordered, name), axis=0)[kept].mean(axis=0))

    return Fused(by_name(ordered, fused), state, names_of(ordered))


def num_trimmed_of(num_parties: int, beta: float) -> int:
    """Return how many parties `trimmed_mean` leaves out at each end.

    Example:
        >>> [num_trimmed_of(n, 0.2) for n in (1, 2, 3, 9, 10)]
        [0, 0, 1, 1, 2]
    """
    if not beta or num_parties <= 2:  # noqa: PLR2004 - of two, none is in the middle
        return 0
    # 0.29 * 100 is 28.999999999999996.
    return max(1, math.floor(beta * num_parties + 1e-9))


def geometric_median(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    smoothing: float,
    byzantine_threshold: int = 0,
) -> Fused:
    """Return the weights with the least mean distance to the parties'.

    RFA (Pillutla et al., 2022, algorithms 1 and 2, https://arxiv.org/abs/1912.13445): smoothed
    Weiszfeld, each party counted by its number of examples. Parties that have fewer than half of
    the examples may lie; but a party can also lie about their number, which the other robust
    fusions do not look at.

    Args:
        global_weights: What the parties started from.
        updates: One a party, in any order.
        state: Given back unchanged: nothing is remembered.
        smoothing: The least distance that is divided by; the paper's nu.
        byzantine_threshold: How many may lie where parties differ; see `mixed`. 0 mixes nothing.

    Returns:
        Arrays with the shapes and dtypes of the updates; all parties are in them.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 1.0, "b": 1.0, "liar": -1e3}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> geometric_median({"w": np.float32([0])}, updates, {}, smoothing=1e-9).weights
        {'w': array([1.], dtype=float32)}
    """
    ordered = mixed(global_weights, updates, byzantine_threshold)
    squared = squared_distances(global_weights, ordered)
    shares = weiszfeld_shares(squared, shares_by_examples(ordered), smoothing)
    return Fused(combined(ordered, shares), state, names_of(ordered))


def weiszfeld_shares(squared: Floats, counted: Floats, smoothing: float) -> Floats:
    """Return each point's share in the geometric median of points.

    The median is a mean with shares, whatever the number of dimensions: so the points are looked
    at once, for their distances, and what is repeated is as cheap as their number.

    Args:
        squared: float64[points, points]: squared distances.
        counted: What each point counts; 1 in sum.
        smoothing: The least distance that is divided by.
    """
    # With more than half of all on one spot it is this spot; no step could come quite there.
    shares = counted
    for _ in range(_MOST_STEPS):
        inside = shares @ squared @ shares / 2
        # Of a point and a mean with shares; rounding can make it less than nothing.
        apart = np.sqrt(np.maximum(squared @ shares - inside, 0))
        closer = counted / np.maximum(apart, smoothing)
        closer /= closer.sum()
        moved = np.abs(closer - shares).max()
        shares = closer
        if moved <= 1e-15:  # noqa: PLR2004 - a few roundings of a share
            break
    return shares


def fed_plus(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    centre: str,
    rho: float,
) -> Fused:
    """Return a centre of the parties' weights, towards which each of them is pulled.

    Fed+ (Yu et al., 2020, https://arxiv.org/abs/2009.06303). Parties go on from weights of their
    own, and their loss has rho/2 * |w - centre|² besides: what is fused here is no model that
    they take over. So `FUSIONS["fed_plus"]` says `keeps_own_weights`, and `proximal_mu` is rho.

    Args:
        global_weights: The last centre.
        updates: One a party, in any order.
        state: Given back unchanged: nothing is remembered.
        centre: "mean" as `fedavg`, "median" as `coordinate_median`, "geometric_median".
        rho: How hard parties are pulled; it changes nothing here.

    Returns:
        Arrays with the shapes and dtypes of the updates; all parties are in them.

    Raises:
        AggregationError: The updates cannot be fused, or there is no such centre.

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "c": 9.0}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> fed_plus({"w": np.float32([0])}, updates, {}, centre="median", rho=0.1).weights
        {'w': array([2.], dtype=float32)}
    """
    del rho
    if centre == "mean":
        return fedavg(global_weights, updates, state)
    if centre == "median":
        return coordinate_median(global_weights, updates, state)
    if centre == "geometric_median":
        return geometric_median(global_weights, updates, state, smoothing=1e-6)
    raise AggregationError(f"centre is {centre!r}; expected one of {', '.join(_CENTRES)}.")


def _stacked(ordered: Sequence[PartyUpdate], name: str) -> Floats:
    return np.stack([update.weights[name].astype(np.float64) for update in ordered])
