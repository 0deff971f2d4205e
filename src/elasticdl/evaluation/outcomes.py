"""Interprets a model's outputs as one prediction per example, to compare with its label.

    outputs (n, C > 1), labels (n,) whole numbers or (n, C) one-hot    classification
    outputs (n,) or (n, 1), labels 0 and 1                             binary
    outputs (n,) or (n, 1), other labels                               regression
    anything else: masks, sequences, several outputs, no labels        other

The task, and whether outputs are probabilities or logits, is decided once, on the first rows, so a
column of the report means the same in every row. A row that does not fit has no value in the
column. Confidence is the probability of the predicted class.

Callers: `report_writer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays

Task: TypeAlias = Literal["classification", "binary", "regression", "other"]
Scores: TypeAlias = Literal["probabilities", "logits", "values"]

_MATRIX = 2
# For half precision: the sum of a thousand probabilities is within this distance of 1.
_SUM_TOLERANCE = 1e-2
_THRESHOLD = 0.5


@dataclass(frozen=True)
class OutcomeReading:
    """Describes how outputs and labels are interpreted.

    Attributes:
        task: Kind of prediction, such as `binary` or `regression`.
        scores: Kind of the outputs, such as `probabilities`.
        num_classes: Number of classes: 2 if binary, otherwise the number of scores per example; 0
            if the task has no classes.
    """

    task: Task
    scores: Scores
    num_classes: int = 0

    def __str__(self) -> str:
        """Return a text for the user: "binary, 2 classes; confidence is read from the outputs"."""
        if self.task in {"regression", "other"}:
            return self.task
        turned = "sigmoid" if self.task == "binary" else "softmax"
        source = "the outputs" if self.scores == "probabilities" else f"the outputs' {turned}"
        return f"{self.task}, {self.num_classes} classes; confidence is read from {source}"


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Labels, predictions and confidences of examples, as masked arrays.

    Each has one value per example, which is masked if the example has none.

    Attributes:
        labels: int64 class numbers if there are classes, else float64.
        predictions: The model's predictions, of the same type as `labels`.
        confidences: float64: the probability of the predicted class.
        correct: bool: whether the prediction equals the label.
    """

    labels: np.ma.MaskedArray[Any, Any]
    predictions: np.ma.MaskedArray[Any, Any]
    confidences: np.ma.MaskedArray[Any, Any]
    correct: np.ma.MaskedArray[Any, Any]


def read(labels: Arrays, outputs: Arrays) -> OutcomeReading:
    """Decide how outputs and labels are interpreted.

    Args:
        labels: Labels of the first rows; None if there are none.
        outputs: Outputs of the first rows.

    Example:
        >>> print(read(np.int64([1, 0]), np.float32([[0.1, 0.9], [0.8, 0.2]])))
        classification, 2 classes; confidence is read from the outputs
        >>> print(read(np.float32([0.3, 2.5]), np.float32([[0.1], [2.2]])))
        regression
    """
    found, label = _only(outputs), _only(labels)
    if found is None or found.dtype.kind not in "fiubV" or len(found) == 0:
        return OutcomeReading("other", "values")
    found = _as_floats(found)
    if found.ndim == _MATRIX and found.shape[1] > 1:
        return _read_classes(label, found)
    flat = _flat(found)
    if flat is None or label is None:
        return OutcomeReading("other", "values")
    numbers = _flat(label)
    if numbers is None or numbers.dtype.kind not in "fiub":
        return OutcomeReading("other", "values")
    if np.isin(numbers, (0, 1)).all():
        known = flat[np.isfinite(flat)]
        inside = ((known >= 0) & (known <= 1)).all()
        return OutcomeReading("binary", "probabilities" if inside else "logits", 2)
    return OutcomeReading("regression", "values")


def _read_classes(
    label: np.ndarray[Any, Any] | None, found: np.ndarray[Any, Any]
) -> OutcomeReading:
    num_classes = found.shape[1]
    known = found[np.isfinite(found).all(axis=1)]
    sums_to_one = (np.abs(known.sum(axis=1) - 1) <= _SUM_TOLERANCE).all()
    probable = bool(len(known) and (known >= 0).all() and sums_to_one)
    classes = OutcomeReading(
        "classification", "probabilities" if probable else "logits", num_classes
    )
    other = OutcomeReading("other", "values")
    if label is None:
        # Ten numbers per example may be anything; ten that sum to one are probabilities.
        return classes if probable else other
    if label.dtype.kind not in "fiub":
        return other
    numbers = _flat(label)
    if numbers is not None:
        whole = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < num_classes)
        return classes if whole.all() else other
    return classes if label.shape == found.shape and _one_hot(label).all() else other


def outcomes(
    reading: OutcomeReading, labels: Arrays, outputs: Arrays, num_examples: int
) -> Outcomes:
    """Return the label, prediction, confidence and correctness of each example.

    Args:
        reading: The result of `read` on the first rows of the report.
        labels: Labels of the examples; None if there are none.
        outputs: The model's outputs for the examples.
        num_examples: Number of examples.
    """
    found, label = _only(outputs), _only(labels)
    if reading.task == "other" or found is None:
        return _nothing(num_examples)
    found = _as_floats(found)
    if reading.task == "classification":
        predicted, confidence = _best(found, reading.scores)
    else:
        flat = found.reshape(num_examples)
        if reading.task == "regression":
            values = np.ma.masked_invalid(flat)
            return Outcomes(
                _numbers(label, num_examples),
                values,
                _masked(num_examples, np.float64),
                _masked(num_examples, np.bool_),
            )
        share = _sigmoid(flat) if reading.scores == "logits" else flat
        predicted = (share >= _THRESHOLD).astype(np.int64)
        confidence = np.where(predicted == 1, share, 1 - share)
    right = _classes(label, num_examples, reading.num_classes)
    unknown = ~np.isfinite(found.reshape(num_examples, -1)).all(axis=1)
    # If the model has no valid output for an example, the example is not correct.
    correct = np.ma.array((predicted == right.data) & ~unknown, mask=np.ma.getmaskarray(right))
    return Outcomes(
        right,
        np.ma.array(predicted, mask=unknown),
        np.ma.array(confidence, mask=unknown),
        correct,
    )


def _only(tree: Arrays) -> np.ndarray[Any, Any] | None:
    """Return the only array of a nested structure of labels or outputs.

    Returns None if there is none, if there are several, or if it has no axis of examples.
    """
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, Sequence) and not isinstance(tree, (str, bytes)):
        return _only(tree[0]) if len(tree) == 1 else None
    if tree is None:
        return None
    array = np.asarray(tree)
    return None if array.ndim == 0 else array


def _as_floats(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # float16 sums are coarse, and numpy has hardly any functions for bfloat16.
    return array if array.dtype.name in {"float32", "float64"} else array.astype(np.float64)


def _flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return an array (n,) or (n, 1) as (n,); None if examples do not have exactly one value."""
    return array.reshape(len(array)) if array.size == len(array) else None


def _one_hot(label: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    hot: np.ndarray[Any, Any] = np.isin(label, (0, 1)).all(axis=1) & (label.sum(axis=1) == 1)
    return hot


def _best(
    found: np.ndarray[Any, Any], scores: Scores
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    predicted = found.argmax(axis=1).astype(np.int64)
    highest = np.take_along_axis(found, predicted[:, np.newaxis], 1)[:, 0].astype(np.float64)
    if scores == "probabilities":
        return predicted, highest
    with np.errstate(invalid="ignore", over="ignore"):
        # The highest score contributes e^0 to the sum.
        above = np.exp(found.astype(np.float64) - highest[:, np.newaxis]).sum(axis=1)
    return predicted, 1 / above


def _sigmoid(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        share: np.ndarray[Any, Any] = 1 / (1 + np.exp(-values.astype(np.float64)))
    return share


def _classes(
    label: np.ndarray[Any, Any] | None, num_examples: int, num_classes: int
) -> np.ma.MaskedArray[Any, Any]:
    if label is None:
        return _masked(num_examples, np.int64)
    numbers = _flat(label)
    if numbers is None:
        return np.ma.array(label.argmax(axis=1).astype(np.int64), mask=~_one_hot(label))
    with np.errstate(invalid="ignore"):
        known = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < num_classes)
    return np.ma.array(np.where(known, numbers, 0).astype(np.int64), mask=~known)


def _numbers(label: np.ndarray[Any, Any] | None, num_examples: int) -> Any:
    flat = None if label is None else _flat(label)
    if flat is None:
        return _masked(num_examples, np.float64)
    return np.ma.masked_invalid(flat.astype(np.float64))


def _masked(num_examples: int, dtype: Any) -> np.ma.MaskedArray[Any, Any]:
    return np.ma.array(np.zeros(num_examples, dtype), mask=np.ones(num_examples, np.bool_))


def _nothing(num_examples: int) -> Outcomes:
    numbers = _masked(num_examples, np.float64)
    return Outcomes(numbers, numbers, numbers, _masked(num_examples, np.bool_))
