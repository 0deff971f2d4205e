"""One minibatch, as every framework's trainer takes it: numpy arrays and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = Any
"""A numpy array, or a dict, list or tuple of `Arrays`; the first axis is the example."""

Record: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""One decoded record: field name -> array."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples that are trained on, evaluated or predicted together.

    Attributes:
        features: What the model takes, as the user's input function returned it.
        labels: What the loss takes; None in prediction.
        num_examples: Length of the first axis of every array.
    """

    features: Arrays
    labels: Arrays
    num_examples: int


def repeated(batch: Batch, num_examples: int) -> Batch:
    """Return a batch of so many examples: those of another, again and again."""
    rows = np.arange(num_examples) % batch.num_examples

    def take(array: Any) -> Any:
        return array[rows]

    return Batch(map_arrays(take, batch.features), map_arrays(take, batch.labels), num_examples)


def map_arrays(function: Callable[[Any], Any], tree: Arrays) -> Arrays:
    """Return the same nesting with `function` applied to every array in it."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {name: map_arrays(function, value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_arrays(function, value) for value in tree)
    return function(tree)


def leaves(tree: Arrays) -> list[Any]:
    """Return the arrays of a nesting, depth first, dicts in their own order."""
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def arrays_bytes(arrays: Arrays) -> int:
    """Return the memory a nesting of arrays takes."""
    return sum(array.nbytes for array in leaves(arrays))


def describe(features: Arrays) -> str:
    """Return names, dtypes and shapes in the user's terms: `image float32[64, 28, 28]`."""
    if isinstance(features, Mapping):
        return ", ".join(f"{name} {describe(value)}" for name, value in features.items())
    if isinstance(features, (list, tuple)):
        return ", ".join(describe(value) for value in features)
    return f"{features.dtype}{list(features.shape)}"


def stack(trees: Sequence[Arrays]) -> Arrays:
    """Return one nesting whose arrays have a new first axis: the batch within the group."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {name: stack([tree[name] for tree in trees]) for name in first}
    if isinstance(first, (list, tuple)):
        return type(first)(stack([tree[i] for tree in trees]) for i in range(len(first)))
    # A group of one is a view: most single steps would otherwise copy the batch for nothing.
    return first[np.newaxis] if len(trees) == 1 else np.stack(trees)
