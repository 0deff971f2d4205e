"""Fusions that use the updates of selected parties only, so that bad updates do no harm.

The number of parties that may be Byzantine (may lie) is a param, and each function documents how
many parties it needs to tolerate them. No function uses `num_examples`, because a party can lie
about it.

Callers: `fusions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

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
    named,
    names_of,
    squared_distances,
)
from elasticdl.errors import AggregationError

Score: TypeAlias = Callable[[Weights], float]
"""Weights -> the loss of a model with them on the aggregator's own data; lower is better."""


def krum(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    byzantine_threshold: int,
) -> Fused:
    """Select the weights of the one party that is closest to its nearest neighbours.

    Krum (Blanchard et al., 2017, section 4, https://arxiv.org/abs/1703.02757):
    with n parties of which f may lie, a party's score is the sum of the squared distances to its
    n - f - 2 nearest neighbours. The lowest score wins; among equal scores, the first by name.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order; at least 2f + 3.
        state: Returned unchanged: this fusion has no state.
        byzantine_threshold: f, the number of parties that may lie.

    Returns:
        The weights of one party, the only one in `chosen`.

    Raises:
        AggregationError: The updates cannot be fused, or are fewer than 2f + 3.

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "c": 2.1, "d": 2.5, "liar": -1e9}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> fused = krum({"w": np.float32([0])}, updates, {}, byzantine_threshold=1)
        >>> fused.chosen, fused.weights
        (('c',), {'w': array([2.1], dtype=float32)})
    """
    ordered = in_order(updates, global_weights)
    best = ordered[_by_krum(global_weights, ordered, byzantine_threshold)[0]]
    weights: dict[str, Array] = {name: array.copy() for name, array in best.weights.items()}
    return Fused(weights, state, (best.party,))


def multi_krum(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    byzantine_threshold: int,
    num_chosen: int,
) -> Fused:
    """Average the weights of the parties with the best scores of `krum`, each counted once.

    Multi-Krum (Blanchard et al., 2017, section 4; see `krum`).

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order; at least 2f + 3.
        state: Returned unchanged: this fusion has no state.
        byzantine_threshold: f, the number of parties that may lie.
        num_chosen: Number of parties to average, at most n - f; 0 means n - f - 2, the number
            of neighbours in a score.

    Returns:
        Arrays with the shapes and dtypes of the updates.

    Raises:
        AggregationError: The updates cannot be fused, are fewer than 2f + 3, or `num_chosen` is
            greater than n - f.

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "c": 2.5, "d": 2.5, "liar": -1e9}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> start = {"w": np.float32([0])}
        >>> fused = multi_krum(start, updates, {}, byzantine_threshold=1, num_chosen=3)
        >>> fused.chosen, fused.weights["w"].round(3)
        (('b', 'c', 'd'), array([2.333], dtype=float32))
    """
    ordered = in_order(updates, global_weights)
    best = _by_krum(global_weights, ordered, byzantine_threshold)
    most = len(ordered) - byzantine_threshold
    if num_chosen > most:
        raise AggregationError(
            f"num_chosen is {num_chosen}; expected at most {most}: the {len(ordered)} parties of "
            f"this round minus the byzantine_threshold of {byzantine_threshold}. Lower num_chosen, "
            "or leave it out."
        )
    return _mean_of(ordered, best[: num_chosen or most - 2], state)


def zeno(
    global_weights: Weights,
    updates: Sequence[PartyUpdate],
    state: FusionState,
    *,
    score: Score,
    byzantine_threshold: int,
    rho: float,
) -> Fused:
    """Average the weights of the parties that reduce the loss on the aggregator's data most.

    Zeno (Xie et al., 2019, algorithm 2, https://arxiv.org/abs/1805.10032). A party's score is how
    much its weights reduce the loss, minus rho * the squared norm of its change. The f parties with
    the lowest scores are left out, and the rest have equal weights in the mean. All parties but one
    may lie.

    Args:
        global_weights: The weights that the parties started from.
        updates: One per party, in any order; more than f.
        state: Returned unchanged: this fusion has no state.
        score: Function (weights) -> loss on the aggregator's data; called once per party, in the
            order of their names. A party whose loss is not finite is ranked last.
        byzantine_threshold: f, the number of parties that may lie.
        rho: Penalty on the squared norm of a change.

    Returns:
        Arrays with the shapes and dtypes of the updates.

    Raises:
        AggregationError: The updates cannot be fused, are not more than f, or too few of them
            have a finite loss.

    Example:
        >>> sent = {"a": 1.0, "b": 2.0, "liar": -1e9}
        >>> updates = [PartyUpdate(p, {"w": np.float32([w])}, 1) for p, w in sent.items()]
        >>> fused = zeno(
        ...     {"w": np.float32([0])},
        ...     updates,
        ...     {},
        ...     score=lambda weights: abs(1.5 - float(weights["w"][0])),
        ...     byzantine_threshold=1,
        ...     rho=0.0,
        ... )
        >>> fused.chosen, fused.weights
        (('a', 'b'), {'w': array([1.5], dtype=float32)})
    """
    ordered = in_order(updates, global_weights)
    num_kept = len(ordered) - byzantine_threshold
    if num_kept < 1:
        raise AggregationError(
            f"byzantine_threshold is {byzantine_threshold}, and {len(ordered)} parties are in this "
            f"round; Zeno needs at least {byzantine_threshold + 1}. Lower byzantine_threshold, or "
            "raise perc_quorum."
        )
    start = PartyUpdate("", global_weights, 1)
    lengths = [squared_distances(global_weights, [start, update])[0, 1] for update in ordered]
    # The loss of the global weights is left out: it is the same in every score.
    costs = [
        score(update.weights) + rho * length
        for update, length in zip(ordered, lengths, strict=True)
    ]
    costs = [cost if math.isfinite(cost) else math.inf for cost in costs]
    best = sorted(range(len(ordered)), key=lambda at: (costs[at], at))[:num_kept]
    if math.isinf(costs[best[-1]]):
        lost = [ordered[at].party for at in range(len(ordered)) if math.isinf(costs[at])]
        raise AggregationError(
            f"The weights of {named(lost)} have no finite loss on the aggregator's data, and only "
            f"{byzantine_threshold} of {len(ordered)} parties may be left out. Check their data, "
            "lower the learning rate, or raise byzantine_threshold."
        )
    return _mean_of(ordered, best, state)


def _by_krum(
    global_weights: Weights, ordered: Sequence[PartyUpdate], num_byzantine: int
) -> list[int]:
    """Rank the parties by their scores of `krum`.

    Args:
        global_weights: The weights that the parties started from.
        ordered: Updates, sorted by party.
        num_byzantine: f, the number of parties that may lie.

    Returns:
        Positions in `ordered`, the best first.

    Raises:
        AggregationError: There are fewer than 2f + 3 updates.
    """
    num_parties = len(ordered)
    if num_parties < 2 * num_byzantine + 3:
        raise AggregationError(
            f"byzantine_threshold is {num_byzantine}, and {num_parties} parties are in this round; "
            f"Krum needs at least {2 * num_byzantine + 3}. Lower byzantine_threshold, or raise "
            "perc_quorum."
        )
    squared = squared_distances(global_weights, ordered)
    # A party is not its own neighbour.
    np.fill_diagonal(squared, np.inf)
    scores = np.sort(squared, axis=1)[:, : num_parties - num_byzantine - 2].sum(axis=1)
    return [int(at) for at in np.argsort(scores, kind="stable")]


def _mean_of(ordered: Sequence[PartyUpdate], which: Sequence[int], state: FusionState) -> Fused:
    # Sorted by name again: the sum must not depend on the order of the scores.
    chosen = [ordered[at] for at in sorted(which)]
    return Fused(combined(chosen, equal_shares(chosen)), state, names_of(chosen))
