"""Updates of the parties in a round, and the arithmetic that all fusions share.

The rules of all fusions are here:

* parties are sorted by name before summing, so that the result is bit-identical in any order;
* sums are computed in float64, and rounded once, to the dtype of the updates;
* arrays of integers and booleans (counters, seeds) are not averaged, but taken from the party with
  the most examples: a mean of counters is meaningless;
* values that are not finite are refused, with the name of the party.

This module does not know the fusions themselves.

Callers: `averages.py`, `server_optimizers.py`, `robust.py`, `selection.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.errors import AggregationError

Array: TypeAlias = np.ndarray[Any, Any]
Floats: TypeAlias = npt.NDArray[np.float64]

Weights: TypeAlias = Mapping[str, Array]
"""Name -> array: the part of a trainer's state under `model/`, without that prefix."""

FusionState: TypeAlias = Mapping[str, Floats]
"""State of a fusion between rounds, such as momentum; it is saved in the checkpoints."""

# The frameworks' names of the moving means and variances of layers.
_STATISTIC = re.compile(r"(^|[/._])(moving_mean|moving_variance|running_mean|running_var)$")
# NumPy has kind "void" for them, so they are recognised by name. The package that defines them is
# installed whenever such an array exists.
_ML_FLOATS = ("bfloat16", "float8", "float6", "float4")
_ML_WHOLE = ("int2", "int4", "uint2", "uint4", "int1", "uint1")
_MAX_NAMED = 3
_LONGEST = 80


@dataclass(frozen=True, eq=False)
class PartyUpdate:
    """One party's update in a round.

    Attributes:
        party: Name of the party.
        weights: Its weights after local training; for `gradient_avg`, gradients.
        num_examples: Number of its own examples that it trained on.
    """

    party: str
    weights: Weights
    num_examples: int


@dataclass(frozen=True, eq=False)
class Fused:
    """Result of fusing the parties' updates in a round.

    Attributes:
        weights: The next global weights; they share no memory with the updates.
        state: The fusion's state for the next round.
        chosen: The parties whose updates were used, sorted.
    """

    weights: Weights
    state: FusionState = field(default_factory=dict)
    chosen: tuple[str, ...] = ()


def is_averaged(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of this dtype are averaged: floats are, integers and booleans not.

    Raises:
        AggregationError: The dtype is neither real nor integer nor boolean.
    """
    if dtype.kind == "f" or dtype.name.startswith(_ML_FLOATS):
        return True
    if dtype.kind in "iub" or dtype.name in _ML_WHOLE:
        return False
    raise AggregationError(
        f"An array of dtype {dtype} cannot be fused; expected floating point, integer or boolean "
        "values. Remove it from the model's weights."
    )


def is_statistic(name: str) -> bool:
    """Tell by its name whether an array is a layer's moving mean or variance of its inputs.

    These are averaged, but a server optimizer does not change them: its momentum could make a
    variance negative.

    Example:
        >>> is_statistic("batch_normalization/moving_variance"), is_statistic("dense/kernel")
        (True, False)
    """
    return _STATISTIC.search(name) is not None


def in_order(
    updates: Sequence[PartyUpdate], global_weights: Weights | None = None
) -> list[PartyUpdate]:
    """Check the updates, and return them sorted by party.

    Args:
        updates: In any order.
        global_weights: The weights that the parties started from. None: do not compare with them.

    Raises:
        AggregationError: There is no update; a party occurs twice or has no example; two parties
            disagree on names, shapes or dtypes, or a party and the global weights on names or
            shapes; an array is not finite.
    """
    if not updates:
        raise AggregationError("There are no updates to combine; expected at least one.")
    ordered = sorted(updates, key=lambda update: update.party)
    for before, after in itertools.pairwise(ordered):
        if before.party == after.party:
            raise AggregationError(
                f"Party {after.party!r} sent two updates in this round; expected one. Give every "
                "party a unique name (connection.info.id in its config)."
            )
    for update in ordered:
        if update.num_examples < 1:
            raise AggregationError(
                f"Party {update.party!r} trained on {update.num_examples} examples; expected at "
                "least 1. Leave it out of the round."
            )
        _check_alike(update, ordered[0].weights, f"party {ordered[0].party!r}")
        if global_weights is not None:
            _check_alike(update, global_weights, "the aggregator", dtypes=False)
        _check_finite(update)
    return ordered


def _check_alike(update: PartyUpdate, other: Weights, whose: str, *, dtypes: bool = True) -> None:
    if update.weights.keys() != other.keys():
        more = sorted(update.weights.keys() - other.keys())
        less = sorted(other.keys() - update.weights.keys())
        differences = [
            *([f"{named(less)} missing"] if less else []),
            *([f"{named(more)} unexpected"] if more else []),
        ]
        raise AggregationError(
            f"Party {update.party!r} sent {len(update.weights)} arrays "
            f"({' and '.join(differences)}); {whose} has {len(other)}. All parties must train the "
            "same model: compare the `model:` section of their configs."
        )
    for name, array in update.weights.items():
        expected = other[name]
        if array.shape != expected.shape or (dtypes and array.dtype != expected.dtype):
            raise AggregationError(
                f"Party {update.party!r} sent {name} as {described(array)}; {whose} has "
                f"{described(expected)}. All parties must train the same model: compare the "
                "`model:` section of their configs."
            )


def _check_finite(update: PartyUpdate) -> None:
    for name, array in update.weights.items():
        number = num_not_finite(array)
        if number:
            raise AggregationError(
                f"Party {update.party!r} sent {name} with {number} of {array.size} numbers not "
                "finite. Leave it out of the round, or try a lower learning rate."
            )


def num_not_finite(array: Array) -> int:
    """Count the NaN and infinite values in an array."""
    if not is_averaged(array.dtype):
        return 0
    # A sum needs no second array. If it is finite, all numbers are. If it is not, it may only have
    # overflowed, so the slow way counts.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(array, dtype=np.float64)):
            return 0
        return int(array.size - np.count_nonzero(np.isfinite(array.astype(np.float64))))


def described(array: Array) -> str:
    """Format dtype and shape of an array for a message.

    Example:
        >>> described(np.zeros((2, 3), np.float32))
        'float32[2, 3]'
    """
    return f"{array.dtype.name}{list(array.shape)}"


def named(names: Sequence[str]) -> str:
    """Format names for a message, at most the first few.

    Example:
        >>> named(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    # Names come from outside: control characters could change what a terminal shows.
    shown = ["".join(c if c.isprintable() else "?" for c in name[:_LONGEST]) for name in names]
    listed = ", ".join(shown[:_MAX_NAMED])
    return f"{listed} and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else listed


def combined(updates: Sequence[PartyUpdate], shares: Floats) -> dict[str, Array]:
    """Return the weighted mean of the parties' weights.

    Arrays of integers and booleans are not averaged but copied, as `by_name` describes.

    Args:
        updates: The result of `in_order`: checked, and sorted by party.
        shares: Weight of each party in the mean: not negative, summing to 1.
    """
    return by_name(updates, lambda name: _sum(updates, shares, name))


def _sum(updates: Sequence[PartyUpdate], shares: Floats, name: str) -> Floats:
    total: Floats = updates[0].weights[name].astype(np.float64) * shares[0]
    for update, share in zip(updates[1:], shares[1:], strict=True):
        total += update.weights[name].astype(np.float64) * share
    return total


def by_name(updates: Sequence[PartyUpdate], fused: Callable[[str], Floats]) -> dict[str, Array]:
    """Build the next global weights array by array, in the dtypes of the updates.

    For each array of real numbers, the result of `fused` is rounded to the array's dtype. Arrays of
    integers and booleans are copied from the update with the most examples (among equals, from the
    first by name). If there is only one update, all its arrays are copied.

    Args:
        updates: The result of `in_order`: checked, and sorted by party.
        fused: Function (name of an array) -> the parties' fused array in float64.

    Raises:
        AggregationError: A result is not finite.
    """
    most = max(updates, key=lambda update: update.num_examples)
    if len(updates) == 1:
        # A single update is returned bit for bit, including the sign of a zero.
        return {name: array.copy() for name, array in most.weights.items()}
    weights = {}
    for name, array in most.weights.items():
        if is_averaged(array.dtype):
            weights[name] = rounded(name, fused(name), array.dtype)
        else:
            weights[name] = array.copy()
    return weights


def rounded(name: str, values: Floats, dtype: np.dtype[Any]) -> Array:
    """Convert float64 numbers to another dtype.

    Raises:
        AggregationError: A number is too large for the dtype, or is not finite.
    """
    with np.errstate(over="ignore"):
        array: Array = np.asarray(values).astype(dtype)
    number = num_not_finite(array)
    if number:
        raise AggregationError(
            f"Combining {name} gave {number} of {array.size} numbers that {dtype.name} cannot "
            "represent. If the fusion has a learning rate, lower it."
        )
    return array


def averaged_names(weights: Weights) -> Iterator[str]:
    """Yield the names of the arrays that are averaged: those of real numbers."""
    return (name for name, array in weights.items() if is_averaged(array.dtype))


def means(ordered: Sequence[PartyUpdate], like: Weights) -> dict[str, Floats]:
    """Return the mean of each array over the parties, weighted by their numbers of examples.

    Args:
        ordered: Updates as `in_order` returns them.
        like: Weights of the model, by name. Means are returned for its arrays of real numbers.

    Returns:
        Name -> mean in float64.
    """
    shares = shares_by_examples(ordered)
    return {name: _sum(ordered, shares, name) for name in averaged_names(like)}


def shares_by_examples(ordered: Sequence[PartyUpdate]) -> Floats:
    """Return each party's share in a mean weighted by numbers of examples; the shares sum to 1."""
    counts = np.array([update.num_examples for update in ordered], np.float64)
    shares: Floats = counts / counts.sum()
    return shares


def equal_shares(ordered: Sequence[PartyUpdate]) -> Floats:
    """Return each party's share in a mean that counts every party once: 1 / number of parties."""
    return np.full(len(ordered), 1 / len(ordered))


def names_of(ordered: Sequence[PartyUpdate]) -> tuple[str, ...]:
    """Return the names of the parties that sent the updates, to store in `Fused.chosen`."""
    return tuple(update.party for update in ordered)


def squared_distances(global_weights: Weights, updates: Sequence[PartyUpdate]) -> Floats:
    """Return the pairwise squared distances between the parties' weights.

    They are computed between the changes to the global weights, in float64, each as a sum of
    squared differences. The formula |x|² + |y|² - 2xy in float32 would be useless: for weights near
    10 and changes near 0.001, its error is twenty times the distance, and it can be negative.

    Args:
        global_weights: The weights that the parties started from.
        updates: The result of `in_order`: checked, and sorted by party.

    Returns:
        float64[parties, parties], symmetric, with zeros on the diagonal.
    """
    num_parties = len(updates)
    squared = np.zeros((num_parties, num_parties))
    for name in averaged_names(updates[0].weights):
        start = global_weights[name].astype(np.float64).ravel()
        changes = np.stack([update.weights[name].astype(np.float64).ravel() for update in updates])
        changes -= start
        for i in range(num_parties - 1):
            apart = changes[i + 1 :] - changes[i]
            squared[i, i + 1 :] += np.einsum("pk,pk->p", apart, apart)
    return squared + squared.T
