"""Batches from a session's generators: checked, weighted by class, limited to one epoch.

A session is a training run described by component classes and a config (`abstractions.py`).

Callers: `abstractions.py`, and the trainer of notebooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from elasticdl.data.batch import Batch, describe, leaves, map_arrays
from elasticdl.dialects.params import described
from elasticdl.errors import DefinitionError

_NUM_PARTS = 3


def batch_of(made: Any, name: str, by_class: Mapping[int, float] | None) -> Batch:
    """Convert an element of a user's generator to a `Batch`, with class weights applied.

    Args:
        made: `(x, y, sample weight)`, or `(x, y)`.
        name: The user's name for the generator, for errors.
        by_class: Class -> weight; None for equal weights.

    Raises:
        DefinitionError: The element is not a batch.
    """
    if not isinstance(made, (tuple, list)) or len(made) not in (2, _NUM_PARTS):
        raise DefinitionError(
            f"{name} yields {described(made)} after preprocessing; expected tuples (x, y, sample "
            "weight)."
        )
    x, y = made[0], made[1]
    sizes = {array.shape[0] if array.ndim else 0 for array in leaves((x, y))}
    if len(sizes) != 1 or 0 in sizes:
        shapes = [list(array.shape) for array in leaves((x, y))]
        raise DefinitionError(
            f"{name}: after preprocessing a batch has arrays of the shapes {shapes}; expected one "
            "entry per example along the first axis of each. Batches are made by the "
            "preprocessor's batchify()."
        )
    size = sizes.pop()
    weights = np.ones(size, np.float32)
    if len(made) == _NUM_PARTS and made[2] is not None:
        weights = map_arrays(lambda array: array.astype(np.float32), made[2])
        for array in leaves(weights):
            if array.shape[:1] != (size,):
                raise DefinitionError(
                    f"{name}: after preprocessing a batch has sample weights of the shape "
                    f"{list(array.shape)} for {size} examples; expected one entry per example."
                )
    if by_class is not None:
        weights = weighted(y, weights, by_class)
    return Batch(x, (y, weights), size)


def weighted(labels: Any, weights: Any, by_class: Mapping[int, float]) -> Any:
    """Multiply sample weights by the weight of each example's class.

    Args:
        labels: Class numbers, `(n,)` or `(n, 1)`, or one-hot `(n, classes)`.
        weights: One per example, `(n,)` or with further axes.
        by_class: Class -> weight; 1 for classes that are not listed.

    Raises:
        DefinitionError: Labels are not classes, as for several outputs or for pixels.
    """
    if not hasattr(labels, "ndim") or labels.ndim not in (1, 2) or not hasattr(weights, "ndim"):
        raise DefinitionError(
            "get_class_weight() returned class weights, but the labels of a batch are "
            f"{described(labels) if not hasattr(labels, 'ndim') else describe(labels)}; expected "
            "one class per example, (n,), (n, 1) or one-hot. Let get_class_weight() return None, "
            "and the generator yield the weights."
        )
    classes = np.asarray(labels)
    if classes.ndim > 1:
        classes = classes[:, 0] if classes.shape[1] == 1 else classes.argmax(axis=1)
    factors = np.ones(len(classes), np.float32)
    for label, weight in by_class.items():
        factors[classes == label] = weight
    return weights * factors.reshape(-1, *[1] * (weights.ndim - 1))


def one_epoch(batches: Iterator[Batch], num_batches: int, num_examples: int) -> Iterator[Batch]:
    """Yield batches up to the last example of an epoch, even if the user's generator continues.

    Args:
        batches: The batches of the user's generator.
        num_batches: Number of batches in an epoch.
        num_examples: Number of examples in an epoch; the last batch is shortened to it.
    """
    seen = 0
    for number, batch in enumerate(batches):
        if number == num_batches:
            return
        left = num_examples - seen
        if number == num_batches - 1 and 0 < left < batch.num_examples:
            yield _first_of(batch, left)
            return
        seen += batch.num_examples
        yield batch


def _first_of(batch: Batch, number: int) -> Batch:
    def cut(array: Any) -> Any:
        return array[:number]

    return Batch(map_arrays(cut, batch.features), map_arrays(cut, batch.labels), number)
