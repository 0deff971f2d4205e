"""Adds the predicted class and its probability to the outputs of a classifier.

    shape of the outputs                  predicted class

    (n, classes)                          the class with the highest score
    (n,) or (n, 1)                        class 1 if its probability is at least 0.5, else class 0

Two columns are added. `prediction` is the name of the class if the trained model has the names
(`Description.classes`), else the number of the class, from 0. If there are fewer names than
classes, the last classes have their numbers as names. `probability` is the probability of this
class. An example with a score that is NaN has no class: its prediction is -1 or an empty name, and
its probability NaN. The columns are not added if the model has several outputs, or an output with
more axes (pixels, time steps).

The model's loss determines whether outputs are probabilities, log-probabilities or logits
(`training/scores.py`); this module does the row-wise arithmetic. Callers: `phase.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.prediction.rows import Columns
    from elasticdl.training.scores import Scores

    Array = np.ndarray[Any, Any]

PREDICTION, PROBABILITY = "prediction", "probability"
_OUTPUT = "output"
NO_CLASS = -1  # prediction for an example whose scores are NaN
_TWO = 2
_THRESHOLD = 0.5
_SUM_TOLERANCE = 1e-4


def scores_shape(columns: Columns) -> tuple[int, ...] | None:
    """Return the shape of one example's scores, such as `(10,)` for ten classes.

    None if the outputs cannot be class scores: there are several, they are not floats, or they have
    more axes.
    """
    if len(columns) != 1 or {PREDICTION, PROBABILITY} & columns.keys():
        return None
    (array,) = columns.values()
    is_row = array.ndim <= _TWO and array.shape[1:] != (0,)
    # bfloat16 and the like are of kind V.
    return tuple(array.shape[1:]) if is_row and array.dtype.kind in "fV" else None


def without_class(columns: Columns) -> Array:
    """Return, for each example, whether it has no predicted class because a score is NaN.

    Returns:
        bool [batch].
    """
    (array,) = columns.values()
    has_nan: Array = np.isnan(array.astype(np.float64).reshape(len(array), -1))
    return np.any(has_nan, axis=1, out=np.empty(len(array), np.bool_))


@dataclass(frozen=True)
class ClassReading:
    """Interpretation of a classifier's scores: computes predicted classes and probabilities.

    Attributes:
        scores: Kind of the scores: probabilities, log-probabilities or logits.
        shape: Shape of the scores of one example.
        names: Name of each class; empty if unknown.
    """

    scores: Scores
    shape: tuple[int, ...]
    names: Sequence[str] = ()

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return _TWO if self.shape in {(), (1,)} else self.shape[0]

    @property
    def is_named(self) -> bool:
        """Whether predictions are names of classes, rather than numbers.

        If there are fewer names than classes, the last classes are named by their numbers. If there
        are more, they are not the names of these classes, and predictions are numbers.
        """
        return 0 < len(self.names) <= self.num_classes

    @property
    def mismatch(self) -> str:
        """Phrase that reports too many or too few class names; empty if the number fits or is 0.

        It continues a sentence: "The model has names for 3 classes, but its output is for 2: ...".
        """
        num_names = len(self.names)
        if num_names in {0, self.num_classes}:
            return ""
        how = (
            "the other classes are predicted as their numbers"
            if self.is_named
            else "predictions are class numbers, not names"
        )
        named = "1 class" if num_names == 1 else f"{num_names} classes"
        return f"names for {named}, but its output is for {self.num_classes}: {how}."

    def are_already_probabilities(self, columns: Columns) -> bool:
        """Return whether scores that count as logits are probabilities: each row sums to 1.

        False for a single score, because logits may lie between 0 and 1, too.

        Args:
            columns: The only output of the model, by name: scores `[examples, *shape]`.
        """
        (array,) = columns.values()
        if self.scores != "logits" or self.shape in {(), (1,)} or not len(array):
            return False
        rows = array.astype(np.float64)
        with np.errstate(invalid="ignore"):  # the sum of inf and -inf
            sums_to_one = np.abs(rows.sum(axis=1) - 1) <= _SUM_TOLERANCE
        return bool(sums_to_one.all() and (rows >= 0).all())

    def with_prediction(self, columns: Columns) -> Mapping[str, Array]:
        """Add the columns `prediction` and `probability` before the columns of a batch.

        Args:
            columns: The only output of the model, by name: scores `[examples, *shape]`.

        Returns:
            Column name -> array. `prediction` has the predicted class of each example, as its name
            (str) if classes are named, else as its number (int64). `probability` has the
            probability of this class, float32.
        """
        ((name, array),) = columns.items()
        number, probability = self._best(array.astype(np.float64))
        number = np.where(without_class(columns), NO_CLASS, number)
        others = map(str, range(len(self.names), self.num_classes))
        names = np.array([*self.names, *others, ""], np.str_)
        return {
            PREDICTION: names[number] if self.is_named else number,
            PROBABILITY: probability.astype(np.float32),
            # Under its own name, such an output would replace one of these two columns.
            _OUTPUT if name in {PREDICTION, PROBABILITY} else name: columns[name],
        }

    def _best(self, scores: Array) -> tuple[Array, Array]:
        if self.shape in {(), (1,)}:
            flat = scores.reshape(len(scores))
            share = _sigmoid(flat) if self.scores == "logits" else flat
            number = (share >= _THRESHOLD).astype(np.int64)
            return number, np.where(number == 1, share, 1 - share)
        number = scores.argmax(axis=1).astype(np.int64)
        highest = np.take_along_axis(scores, number[:, None], axis=1)[:, 0]
        if self.scores == "probabilities":
            return number, highest
        if self.scores == "log_probabilities":
            return number, np.exp(highest)
        with np.errstate(invalid="ignore"):
            # The highest score contributes e^0 to the sum.
            return number, 1 / np.exp(scores - highest[:, None]).sum(axis=1)


def _sigmoid(values: Array) -> Array:
    with np.errstate(over="ignore"):
        share: Array = 1 / (1 + np.exp(-values))
    return share
