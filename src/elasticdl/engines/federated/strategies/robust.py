"""Robust fusions: medians and trimmed means that tolerate arbitrary (Byzantine) updates; and Fed+.

The number of parties that may be Byzantine (may lie) is a param, and each function documents how
many parties it needs to tolerate them. A party can lie about `num_examples`, so only
`geometric_median` uses it, as its paper does.

A median is a good model only if the honest parties' updates are similar. If their data differ much,
set `byzantine_threshold` of `coordinate_median`, `trimmed_mean` or `geometric_median`: each update
is then mixed with its nearest ones first (`nearest_neighbor_mixing`). Fed+ is here because its
"centre" may be one of the medians.

Callers: `fusions.py`, where each fusion is registered under its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elasticdl.engines.federated.strategies.averages import fedavg
from elasticdl.engines.federated.strategies.updates import (
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

_MAX_STEPS = 1000
_CENTRES = ("mean", "median", "geometric_median")


def nearest_neighbor_mixing(
    global_weights: Weights, updates: Sequence[PartyUpdate], num_byzantine: int
) -> list[PartyUpdate]:
    """Replace each update by the mean of its n - f nearest updates, including itself.

    NNM (Allouah et al., 2023, https://arxiv.org/abs/2302.01772). It is done before a median,
    because it moves the updates of honest parties with different data closer together. A liar that
    is far from them enters few of the means. Each party counts once in a mean.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        num_byzantine: f, the number of parties that may lie, below half of all n parties. 0 means
            no mixing.

    Returns:
        One update per party, sorted by party, with the dtypes of the original updates.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 0.0, "b": 3.0, "c": 6.0, "liar": -903.0}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> [
        ...     float(m.weights["w"][0])
        ...     for m in nearest_neighbor_mixing({"w": np.float32([0])}, updates, 1)
        ... ]
        [3.0, 3.0, 3.0, -300.0]
    """
    ordered = in_order(updates, global_weights)
    if not num_byzantine:
        return ordered
    num_near = len(ordered) - num_byzantine
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
    """Return the element-wise median over the parties, each counted once.

    Yin et al., 2018, algorithm 1, option I (https://arxiv.org/abs/1803.01498). Fewer than half of
    the parties may lie. Use this fusion with three or more parties: a median of two is their mean.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: Returned unchanged: this fusion has no state.
        byzantine_threshold: 0 uses the updates as they are. With a number f above 0, each update is
            first replaced by the mean of its nearest ones (`nearest_neighbor_mixing`), so that f
            lying parties do little harm even if the honest parties' data differ much.

    Returns:
        Arrays with the shapes and dtypes of the updates; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "liar": -1e9}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> coordinate_median({"w": np.float32([0])}, updates, {}).weights
        {'w': array([1.], dtype=float32)}
    """
    ordered = nearest_neighbor_mixing(global_weights, updates, byzantine_threshold)
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
    """Return the element-wise mean over the parties, without the highest and lowest values.

    Yin et al., 2018, algorithm 1, option II (https://arxiv.org/abs/1803.01498). Of n parties,
    beta * n (rounded down) are left out at each end; with three or more parties and beta above 0,
    at least one, so that the result is not silently a plain mean. The number of parties that may
    lie equals the number left out at one end.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: Returned unchanged: this fusion has no state.
        beta: Fraction of the parties left out at each end; below 0.5. 0 is `iter_avg`.
        byzantine_threshold: 0 uses the updates as they are. With a number f above 0, each update is
            first replaced by the mean of its nearest ones (`nearest_neighbor_mixing`), so that f
            lying parties do little harm even if the honest parties' data differ much.

    Returns:
        Arrays with the shapes and dtypes of the updates; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "c": 6.0, "liar": -1e9}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> trimmed_mean({"w": np.float32([0])}, updates, {}, beta=0.25).weights
        {'w': array([1.5], dtype=float32)}
    """
    ordered = nearest_neighbor_mixing(global_weights, updates, byzantine_threshold)
    num_parties = len(ordered)
    num_trimmed = num_trimmed_of(num_parties, beta)
    # Each element keeps other parties, so this is not a weighted sum with one share per party.
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
    if not beta or num_parties <= 2:  # noqa: PLR2004 - with two, nothing would be left
        return 0
    # The tolerance is needed because 0.29 * 100 is 28.999999999999996.
    return max(1, math.floor(beta * num_parties + 1e-9))


def geometric_median(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    smoothing: float,
    byzantine_threshold: int = 0,
) -> Fused:
    """Return the geometric median: the point with the least mean distance to the parties' weights.

    RFA (Pillutla et al., 2022, algorithms 1 and 2, https://arxiv.org/abs/1912.13445), computed by
    the smoothed Weiszfeld algorithm. Each party is counted by its number of examples, so the result
    is robust only while lying parties report fewer than half of all examples. A party can lie about
    this number too; the other robust fusions do not use it.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order.
        state: Returned unchanged: this fusion has no state.
        smoothing: Lower bound of the distances by which the algorithm divides; the paper's nu.
        byzantine_threshold: 0 uses the updates as they are. With a number f above 0, each update is
            first replaced by the mean of its nearest ones (`nearest_neighbor_mixing`), so that f
            lying parties do little harm even if the honest parties' data differ much.

    Returns:
        Arrays with the shapes and dtypes of the updates; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused (`updates.in_order`).

    Example:
        >>> sent = {"a": 1.0, "b": 1.0, "liar": -1e3}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> geometric_median({"w": np.float32([0])}, updates, {}, smoothing=1e-9).weights
        {'w': array([1.], dtype=float32)}
    """
    ordered = nearest_neighbor_mixing(global_weights, updates, byzantine_threshold)
    squared = squared_distances(global_weights, ordered)
    shares = weiszfeld_shares(squared, shares_by_examples(ordered), smoothing)
    return Fused(combined(ordered, shares), state, names_of(ordered))


def weiszfeld_shares(squared: Floats, counted: Floats, smoothing: float) -> Floats:
    """Compute one share per point, so that the mean with these shares is the geometric median.

    This is Weiszfeld's algorithm on distances between the points instead of their coordinates, so
    that the cost of an iteration does not depend on the number of dimensions.

    Args:
        squared: float64[points, points]: squared distances between the points.
        counted: How much each point counts, such as its fraction of the examples; sums to 1.
        smoothing: Lower bound of the distances by which the algorithm divides.

    Returns:
        One share per point; the shares sum to 1.
    """
    # If one point has more than half of the weight, it is the median. The steps only approach it,
    # so they end when they hardly change the weights.
    shares = counted
    for _ in range(_MAX_STEPS):
        inside = shares @ squared @ shares / 2
        # Distance from each point to the weighted mean; rounding can make its square negative.
        apart = np.sqrt(np.maximum(squared @ shares - inside, 0))
        closer = counted / np.maximum(apart, smoothing)
        closer /= closer.sum()
        moved = np.abs(closer - shares).max()
        shares = closer
        if moved <= 1e-15:  # noqa: PLR2004 - a few rounding errors of a share
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
    """Return the centre of the parties' weights: the mean or a median, as `centre` chooses.

    Fed+ (Yu et al., 2020, https://arxiv.org/abs/2009.06303). The parties do not adopt the centre as
    their weights. They continue from their own weights w, and rho/2 * |w - centre|² is added to
    their loss, which pulls w towards the centre. So `FUSIONS["fed_plus"]` has `keeps_own_weights`,
    and its `proximal_mu` is rho.

    Args:
        global_weights: The previous centre.
        updates: One per party, in any order.
        state: Returned unchanged: this fusion has no state.
        centre: How the centre is computed: "mean" (`fedavg`), "median" (`coordinate_median`) or
            "geometric_median".
        rho: Strength of the pull at the parties; it has no effect here.

    Returns:
        Arrays with the shapes and dtypes of the updates; `chosen` has all parties.

    Raises:
        AggregationError: The updates cannot be fused, or the centre is unknown.

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
