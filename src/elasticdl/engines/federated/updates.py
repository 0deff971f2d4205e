"""What parties have come to in a round, and how it is added up: values, and NumPy.

All that fusions share is decided here, once:

* parties are sorted by name before anything is added, so that no bit depends on who was first;
* sums are made in float64, and rounded once, to the dtype of the first update;
* arrays of whole numbers and truth values (counters, seeds) are not averaged, but taken from the
  party with the most examples: a mean of counters counts nothing;
* what is not finite is refused, with the name of the party.

Which fusions there are is not known here.

Callers: `averages.py`, `server_steps.py`, `robust.py`, `selection.py`.
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
"""Name -> array: what a trainer's state has under `model/`, without that prefix."""

FusionState: TypeAlias = Mapping[str, Floats]
"""What a fusion remembers from round to round, such as momentum; it is checkpointed."""

# What the frameworks call the means and variances that layers keep of their inputs.
_STATISTIC = re.compile(r"(^|[/._])(moving_mean|moving_variance|running_mean|running_var)$")
# NumPy knows them as void; their package is there whenever an array of them is.
_ML_FLOATS = ("bfloat16", "float8", "float6", "float4")
_ML_WHOLE = ("int2", "int4", "uint2", "uint4", "int1", "uint1")
_MOST_NAMED = 3
_LONGEST = 80


@dataclass(frozen=True, eq=False)
class PartyUpdate:
    """What one party has come to in a round.

    Attributes:
        party: Its name.
        weights: Its weights after local training; for `gradient_avg`, gradients.
        num_examples: How many examples of its own it trained on.
    """

    party: str
    weights: Weights
    num_examples: int


@dataclass(frozen=True, eq=False)
class Fused:
    """What the updates of a round came to.

    Attributes:
        weights: The next global weights; arrays of their own.
        state: What the fusion wants back in the next round.
        chosen: The parties whose updates are in it, sorted.
    """

    weights: Weights
    state: FusionState = field(default_factory=dict)
    chosen: tuple[str, ...] = ()


def is_averaged(dtype: np.dtype[Any]) -> bool:
    """Whether a mean of such numbers means something.

    Raises:
        AggregationError: They are neither real nor whole numbers nor truth values.
    """
    if dtype.kind == "f" or dtype.name.startswith(_ML_FLOATS):
        return True
    if dtype.kind in "iub" or dtype.name in _ML_WHOLE:
        return False
    raise AggregationError(
        f"An array of dtype {dtype} cannot be fused; expected real or whole numbers, or truth "
        "values. Keep it out of the model's weights."
    )


def is_statistic(name: str) -> bool:
    """Whether an array is a mean or variance that a layer keeps of its inputs.

    They are averaged, but never moved by a server's optimizer: a step along an old direction can
    make a variance negative.

    Example:
        >>> is_statistic("batch_normalization/moving_variance"), is_statistic("dense/kernel")
        (True, False)
    """
    return _STATISTIC.search(name) is not None


def in_order(
    updates: Sequence[PartyUpdate], global_weights: Weights | None = None
) -> list[PartyUpdate]:
    """Return the updates sorted by party, after a look at each of them.

    Args:
        updates: In any order.
        global_weights: What they started from; None does not compare with it.

    Raises:
        AggregationError: There is no update; a party is there twice or has no example; two
            parties, or a party and the global weights, disagree on names, shapes or dtypes; an
            array is not finite.
    """
    if not updates:
        raise AggregationError("There is no update to fuse; expected that of one party at least.")
    ordered = sorted(updates, key=lambda update: update.party)
    for before, after in itertools.pairwise(ordered):
        if before.party == after.party:
            raise AggregationError(
                f"Party {after.party!r} is in this round twice; expected one update of each. Give "
                "every party a name of its own (connection.info.id of its config)."
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
        said = [
            *([f"{named(less)} missing"] if less else []),
            *([f"{named(more)} too many"] if more else []),
        ]
        raise AggregationError(
            f"Party {update.party!r} sent {len(update.weights)} arrays, {' and '.join(said)}; "
            f"{whose} has {len(other)}. All parties must train the same model: compare the "
            "`model:` section of their configs."
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
                "finite. Leave it out of the round; a lower learning rate may help it."
            )


def num_not_finite(array: Array) -> int:
    """Return how many numbers of an array are NaN or infinite."""
    if not is_averaged(array.dtype):
        return 0
    # Adding up costs no second array, and is finite only if all of them are (or too large, which
    # the slow way then clears up).
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(array, dtype=np.float64)):
            return 0
        return int(array.size - np.count_nonzero(np.isfinite(array.astype(np.float64))))


def described(array: Array) -> str:
    """Return dtype and shape in a few words.

    Example:
        >>> described(np.zeros((2, 3), np.float32))
        'float32[2, 3]'
    """
    return f"{array.dtype.name}{list(array.shape)}"


def named(names: Sequence[str]) -> str:
    """Return names for a message, the first few of many.

    Example:
        >>> named(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    # Names come from outside: they must not rewrite what a terminal shows.
    shown = ["".join(c if c.isprintable() else "?" for c in name[:_LONGEST]) for name in names]
    listed = ", ".join(shown[:_MOST_NAMED])
    return f"{listed} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else listed


def combined(updates: Sequence[PartyUpdate], shares: Floats) -> dict[str, Array]:
    """Return the sum of the parties' weights, each times its share.

    Args:
        updates: As `in_order` returns them.
        shares: One a party, not negative, 1 in sum.
    """
    return by_name(updates, lambda name: _sum(updates, shares, name))


def _sum(updates: Sequence[PartyUpdate], shares: Floats, name: str) -> Floats:
    total: Floats = updates[0].weights[name].astype(np.float64) * shares[0]
    for update, share in zip(updates[1:], shares[1:], strict=True):
        total += update.weights[name].astype(np.float64) * share
    return total


def by_name(updates: Sequence[PartyUpdate], fused: Callable[[str], Floats]) -> dict[str, Array]:
    """Return an array for each name: what `fused` says of it, rounded; whole numbers as they are.

    Args:
        updates: As `in_order` returns them; whole numbers are taken from the one of them with the
            most examples, the first by name of several.
        fused: Name -> float64, for arrays of real numbers.

    Raises:
        AggregationError: What came out is not finite.
    """
    most = max(updates, key=lambda update: update.num_examples)
    if len(updates) == 1:
        # What went in comes out, to the sign of a zero.
        return {name: array.copy() for name, array in most.weights.items()}
    weights = {}
    for name, array in most.weights.items():
        if is_averaged(array.dtype):
            weights[name] = rounded(name, fused(name), array.dtype)
        else:
            weights[name] = array.copy()
    return weights


def rounded(name: str, values: Floats, dtype: np.dtype[Any]) -> Array:
    """Return float64 numbers in another dtype.

    Raises:
        AggregationError: They do not fit, or were not finite.
    """
    with np.errstate(over="ignore"):
        array: Array = np.asarray(values).astype(dtype)
    number = num_not_finite(array)
    if number:
        raise AggregationError(
            f"Fusing {name} came to {number} of {array.size} numbers that {dtype.name} cannot "
            "hold. If the fusion makes steps of its own, lower its learning rate."
        )
    return array


def averaged_names(weights: Weights) -> Iterator[str]:
    """Yield the names of arrays that are averaged, in the order of the weights."""
    return (name for name, array in weights.items() if is_averaged(array.dtype))


def means(ordered: Sequence[PartyUpdate], like: Weights) -> dict[str, Floats]:
    """Return the means by name, in float64, each party counted by its number of examples."""
    shares = shares_by_examples(ordered)
    return {name: _sum(ordered, shares, name) for name in averaged_names(like)}


def shares_by_examples(ordered: Sequence[PartyUpdate]) -> Floats:
    """Return each party's share in a mean that counts examples."""
    counts = np.array([update.num_examples for update in ordered], np.float64)
    shares: Floats = counts / counts.sum()
    return shares


def equal_shares(ordered: Sequence[PartyUpdate]) -> Floats:
    """Return each party's share in a mean that counts everybody once."""
    return np.full(len(ordered), 1 / len(ordered))


def names_of(ordered: Sequence[PartyUpdate]) -> tuple[str, ...]:
    """Return the parties' names, for `Fused.chosen`."""
    return tuple(update.party for update in ordered)


def squared_distances(global_weights: Weights, updates: Sequence[PartyUpdate]) -> Floats:
    """Return how far the parties are from each other.

    The distances are those of the changes to the global weights, in float64, and each is a sum of
    squared differences. (|x|² + |y|² - 2xy in float32 has an error of twenty times the distance
    where weights are near 10 and changes near 0.001, and comes out negative.)

    Args:
        global_weights: What the parties started from.
        updates: As `in_order` returns them.

    Returns:
        float64[parties, parties], symmetric, zeros on its diagonal.
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
