"""Partitions of one data set among parties, for experiments.

Every split takes the labels of the examples and returns the positions of each party's examples.
Each example goes to exactly one party, and each party gets at least one; the same seed gives the
same split.

    iid         all parties have the same mixture of labels
    dirichlet   mixtures of labels differ: the smaller alpha, the more they differ
    shards      each party has only a few labels
    by_size     the same mixture, but different numbers of examples

The splits do not see the examples. Labels may be of any type that can be sorted: only their order
and which of them are equal affects a split.

Callers: `init.py`, benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.errors import UsageError

Labels: TypeAlias = npt.NDArray[Any]
Positions: TypeAlias = npt.NDArray[np.int64]


def iid(labels: Labels, num_parties: int, seed: int) -> list[Positions]:
    """Split the examples at random into equal parts, which differ by at most one example.

    Args:
        labels: One per example, 1-D; only their number matters.
        num_parties: Number of parties.
        seed: Seed of the random split.

    Returns:
        For each party the positions of its examples, ascending.

    Raises:
        UsageError: There are fewer examples than parties, or no parties.

    Example:
        >>> [part.size for part in iid(np.zeros(10), num_parties=3, seed=0)]
        [4, 3, 3]
    """
    labels = _checked(labels, num_parties)
    order = np.random.default_rng(seed).permutation(len(labels))
    return _sorted(np.array_split(order, num_parties))


def dirichlet(
    labels: Labels, num_parties: int, seed: int, *, alpha: float = 0.5
) -> list[Positions]:
    """Split the examples of each label in proportions drawn from Dir(alpha).

    Mixtures from a Dirichlet distribution are from Hsu et al., 2019
    (https://arxiv.org/abs/1909.06335). The paper draws a mixture of labels for each party. Here, as
    in most later experiments, the proportions of the parties are drawn for each label, so that each
    example is used exactly once. Parties then differ in size as well.

    Args:
        labels: One per example, 1-D.
        num_parties: Number of parties.
        seed: Seed of the random split.
        alpha: 0.1 gives a party mostly one or two labels, 100 is nearly iid.

    Returns:
        For each party the positions of its examples, ascending. A party without examples gets one
        from the party with the most.

    Raises:
        UsageError: There are fewer examples than parties, no parties, or alpha is not above 0.

    Example:
        >>> labels = np.arange(100) % 2
        >>> parts = dirichlet(labels, num_parties=3, seed=1, alpha=0.1)
        >>> sorted(np.concatenate(parts).tolist()) == list(range(100))
        True
    """
    labels = _checked(labels, num_parties)
    if not (np.isfinite(alpha) and alpha > 0):
        raise UsageError(f"alpha is {alpha}; expected a number above 0, such as 0.5.")
    rng = np.random.default_rng(seed)
    parts: list[list[Positions]] = [[] for _ in range(num_parties)]
    for label in np.unique(labels):
        positions = rng.permutation(np.flatnonzero(labels == label))
        # With a tiny alpha, all drawn values may be 0: then one party gets all examples.
        drawn = rng.standard_gamma(alpha, num_parties)
        if not drawn.sum() > 0:
            drawn[rng.integers(num_parties)] = 1
        ends = np.cumsum(drawn / drawn.sum())[:-1]
        for part, given in zip(
            parts, np.split(positions, np.round(ends * len(positions)).astype(int)), strict=True
        ):
            part.append(given)
    return _sorted(_none_empty([np.concatenate(part) for part in parts]))


def shards(
    labels: Labels, num_parties: int, seed: int, *, shards_per_party: int = 2
) -> list[Positions]:
    """Split the examples, sorted by label, into shards, so that each party has only a few labels.

    The pathological split of McMahan et al., 2017, section 3 (https://arxiv.org/abs/1602.05629).

    Args:
        labels: One per example, 1-D.
        num_parties: Number of parties.
        seed: Seed of the random split.
        shards_per_party: Shards per party. A shard has one label, or two if one ends within it.

    Returns:
        For each party the positions of its examples, ascending.

    Raises:
        UsageError: There are fewer examples than shards, no parties, or no shards.

    Example:
        >>> labels = np.repeat([0, 1, 2, 3], 5)
        >>> [len(set(labels[part])) for part in shards(labels, num_parties=2, seed=0)]
        [2, 2]
    """
    if shards_per_party < 1:
        raise UsageError(f"shards_per_party is {shards_per_party}; expected at least 1.")
    num_shards = max(num_parties, 0) * shards_per_party
    labels = _checked(labels, num_parties, needed=num_shards, of="shards")
    rng = np.random.default_rng(seed)
    # The examples within a label are shuffled too, because files are often sorted by other fields.
    shuffled = rng.permutation(len(labels))
    cut = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], num_shards)
    dealt = rng.permutation(num_shards).reshape(num_parties, shards_per_party)
    return _sorted([np.concatenate([cut[shard] for shard in own]) for own in dealt])


def by_size(labels: Labels, num_parties: int, seed: int, *, skew: float = 1.0) -> list[Positions]:
    """Split the examples at random, with the size of party i (from 1) proportional to i**-skew.

    Args:
        labels: One per example, 1-D; only their number matters.
        num_parties: Number of parties.
        seed: Seed of the random split. It does not affect the sizes: the first party has the most.
        skew: 0 is `iid`; with 1 the tenth party has a tenth of the first party's examples.

    Returns:
        For each party the positions of its examples, ascending.

    Raises:
        UsageError: There are fewer examples than parties, no parties, or skew is below 0.

    Example:
        >>> [part.size for part in by_size(np.zeros(110), num_parties=3, seed=0)]
        [60, 30, 20]
    """
    labels = _checked(labels, num_parties)
    if not (np.isfinite(skew) and skew >= 0):
        raise UsageError(f"skew is {skew}; expected a number, at least 0.")
    wanted = np.arange(1, num_parties + 1, dtype=np.float64) ** -skew
    # Each party gets one example first; the remainder from rounding down goes to the first parties.
    free = len(labels) - num_parties
    sizes = 1 + np.floor(free * wanted / wanted.sum() + 1e-9).astype(int)
    sizes[: len(labels) - sizes.sum()] += 1
    order = np.random.default_rng(seed).permutation(len(labels))
    return _sorted(np.split(order, np.cumsum(sizes)[:-1]))


@dataclass(frozen=True, eq=False)
class PartitionSummary:
    """Number of examples per party and label.

    Attributes:
        labels: All labels, ascending: the columns.
        counts: int64[parties, labels].
    """

    labels: tuple[Any, ...]
    counts: npt.NDArray[np.int64]

    @property
    def sizes(self) -> list[int]:
        """Number of examples of each party."""
        return [int(size) for size in self.counts.sum(axis=1)]


def summary(labels: Labels, parts: Sequence[Positions]) -> PartitionSummary:
    """Count the examples per party and label.

    Args:
        labels: One per example, 1-D.
        parts: For each party the positions of its examples, as a split returns them.

    Example:
        >>> labels = np.array([5, 5, 7])
        >>> found = summary(labels, [np.array([0, 2]), np.array([1])])
        >>> found.labels, found.counts.tolist()
        ((5, 7), [[1, 1], [1, 0]])
    """
    known, column = np.unique(np.asarray(labels), return_inverse=True)
    counts = [np.bincount(column[part], minlength=len(known)) for part in parts]
    return PartitionSummary(
        tuple(known.tolist()), np.array(counts, np.int64).reshape(-1, len(known))
    )


def _checked(
    labels: Labels, num_parties: int, *, needed: int | None = None, of: str = "parties"
) -> Labels:
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise UsageError(
            f"The labels have shape {list(labels.shape)}; expected one label per example. For "
            "one-hot labels, use argmax(axis=1)."
        )
    if num_parties < 1:
        raise UsageError(f"{num_parties} parties; expected at least 1.")
    needed = num_parties if needed is None else needed
    if len(labels) < needed:
        raise UsageError(
            f"{len(labels)} examples for {needed} {of}; each needs at least one. Use fewer "
            "parties, or more data."
        )
    return labels


def _none_empty(parts: list[Positions]) -> list[Positions]:
    """Give each empty part one example of the largest part; changes and returns the list."""
    for i, part in enumerate(parts):
        if not part.size:
            largest = max(range(len(parts)), key=lambda at: parts[at].size)
            parts[i], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return parts


def _sorted(parts: Sequence[Positions]) -> list[Positions]:
    return [np.sort(part) for part in parts]
