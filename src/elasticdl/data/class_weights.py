"""Converts class weights to sample weights, as `keras.Model.fit(class_weight=...)` does.

Callers: `engines/input_calls.py`, which prepares batches for training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch


def with_class_weights(batch: Batch, class_weight: Mapping[int, float], where: str) -> Batch:
    """Return the batch with each example's weight multiplied by the weight of its class.

    Args:
        batch: Its labels are class numbers, of shape [examples] or [examples, 1], or one-hot
            rows, of shape [examples, classes].
        class_weight: Class -> weight; a missing class has weight 1, as in Keras.
        where: The source of the batch and the weights, as the start of an error.

    Raises:
        DefinitionError: The labels are not classes, or one-hot labels do not have a class of
            `class_weight`.

    Example:
        >>> from elasticdl.data.batch import Batch
        >>> batch = Batch(np.zeros((3, 2)), np.array([0, 1, 1]), 3)
        >>> with_class_weights(batch, {0: 1.0, 1: 5.0}, "model.py:7").weights
        array([1., 5., 5.], dtype=float32)
    """
    classes, num_classes = _classes(batch.labels, where)
    unknown = [key for key in class_weight if num_classes and int(key) >= num_classes]
    if unknown:
        raise DefinitionError(
            f"{where}: class_weight has the class {unknown[0]}; labels are one-hot rows of "
            f"{num_classes} classes, 0 to {num_classes - 1}."
        )
    known = {int(key): float(weight) for key, weight in class_weight.items()}
    weights = np.array([known.get(int(each), 1.0) for each in classes], np.float32)
    if batch.weights is not None:
        further = (1,) * (batch.weights.ndim - 1)
        weights = batch.weights * weights.reshape(-1, *further)
    return replace(batch, weights=weights)


def checked(class_weight: Any, where: str) -> Mapping[int, float]:
    """Check the type and the values of a user's `class_weight`, and return it unchanged.

    Args:
        class_weight: The user's value.
        where: Its source, as the start of an error.

    Raises:
        DefinitionError: It is not a dict of class numbers and weights.
    """
    if not isinstance(class_weight, Mapping):
        raise DefinitionError(
            f"{where}: class_weight is {class_weight!r}; expected a dict {{class: weight}}, as "
            "{0: 1.0, 1: 5.0}."
        )
    for key, weight in class_weight.items():
        is_class = isinstance(key, (int, np.integer)) and not isinstance(key, bool) and key >= 0
        if not is_class:
            raise DefinitionError(
                f"{where}: class_weight has the key {key!r}; expected the number of a class: 0, "
                "1, ..."
            )
        is_number = isinstance(weight, (int, float, np.number)) and not isinstance(weight, bool)
        if not (is_number and np.isfinite(weight) and weight >= 0):
            raise DefinitionError(
                f"{where}: class_weight[{key}] is {weight!r}; expected a number that is not "
                "negative."
            )
    return class_weight


def _classes(labels: Any, where: str) -> tuple[np.ndarray[Any, Any], int]:
    """Return the class number of each example, and the number of classes; 0 if it is unknown.

    One-hot rows show the number of classes, class numbers do not.

    Args:
        labels: The labels of a batch.
        where: The source of the batch, as the start of an error.

    Raises:
        DefinitionError: The labels are neither class numbers nor one-hot rows.
    """
    shape = list(labels.shape) if isinstance(labels, np.ndarray) else None
    if shape is not None and len(shape) == 1:
        return _whole(labels, where), 0
    if shape is not None and len(shape) == 2:  # noqa: PLR2004 - a column, or one-hot rows
        if shape[1] == 1:
            return _whole(labels[:, 0], where), 0
        return labels.argmax(axis=1), shape[1]
    what = f"of shape {shape}" if shape is not None else f"a {type(labels).__name__}"
    raise DefinitionError(
        f"{where}: there are class weights, and the labels are {what}; expected one class for each "
        "example. Return sample weights from the input function instead."
    )


def _whole(labels: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    if labels.dtype.kind not in "iufb" or not np.array_equal(labels, np.round(labels)):
        raise DefinitionError(
            f"{where}: there are class weights, and the labels are {labels.dtype} values such as "
            f"{labels.flat[0]!r}; expected class numbers: 0, 1, ..."
        )
    return labels
