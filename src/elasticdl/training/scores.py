"""Infers from a classifier's loss whether it outputs probabilities, their logarithms, or logits.

    a cross-entropy of     is, for an example of class y,
    probabilities p        -log p[y]
    log-probabilities z    -z[y]
    logits z               log(sum(exp(z))) - z[y]      (a single one: log(1 + exp(z)) - y z)

A loss written by the user is called with made-up outputs and labels. If one of these formulas gives
the same values for all of them, the loss is that cross-entropy. The model's own outputs are not
considered, because numbers of any kind may lie between 0 and 1.

Callers: `keras/scores.py` and `torch/scores.py`, which recognize the losses of their framework.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import numpy as np

Scores: TypeAlias = Literal["probabilities", "log_probabilities", "logits"]
Array: TypeAlias = "np.ndarray[Any, Any]"
LossOfArrays: TypeAlias = Callable[[Array, Array], Any]
"""`(outputs, labels)` -> the loss of a batch or of each example; may raise any exception."""

_NUM_EXAMPLES = 5
_TOLERANCE = 1e-3


def scores_by_loss(loss: LossOfArrays, shape: tuple[int, ...]) -> Scores | None:
    """Return the kind of outputs that a loss expects, such as "logits".

    None if the loss is not a cross-entropy.

    Args:
        loss: Function (outputs, labels) -> loss of a batch or of each example, all as arrays.
        shape: Shape of the outputs for one example: `(classes,)`, or `(1,)` or `()` for the
            probability of the second of two classes.

    Example:
        >>> scores_by_loss(lambda p, y: -np.log(p[np.arange(len(y)), y]), (3,))
        'probabilities'
        >>> scores_by_loss(lambda z, y: np.mean((z - y) ** 2), (1,))
    """
    made_up = _binary(shape) if shape in {(), (1,)} else _categorical(shape[0])
    for trials in made_up:
        found = {_fitting(loss, *trial) for trial in trials}
        if len(found) == 1 and (scores := found.pop()) is not None:
            return scores
    return None


_Trial: TypeAlias = "tuple[Array, Array, dict[Scores, float]]"


def _fitting(
    loss: LossOfArrays, outputs: Array, labels: Array, expected: dict[Scores, float]
) -> Scores | None:
    try:
        with warnings.catch_warnings():
            # Losses of PyTorch warn about shapes that they broadcast.
            warnings.simplefilter("ignore")
            value = float(np.mean(np.asarray(loss(outputs, labels), np.float64)))
    except Exception:  # noqa: BLE001 - the labels may have another form than the user's function takes
        return None
    return next(
        (name for name, each in expected.items() if np.isclose(value, each, rtol=_TOLERANCE)), None
    )


def _categorical(num_classes: int) -> Iterator[list[_Trial]]:
    """Yield made-up outputs and labels of a classifier, with the loss that each formula gives.

    Each yielded list is for one form of labels: class indices of shape [n] or [n, 1], or one-hot
    rows. Its entries are (outputs, labels, expected losses); the last is a dict from the kind of
    outputs, such as "logits", to the mean cross-entropy.
    """
    rng = np.random.default_rng(0)
    outputs = rng.dirichlet(np.full(num_classes, 5.0), _NUM_EXAMPLES).astype(np.float32)
    numbers = rng.permutation(np.arange(_NUM_EXAMPLES) % num_classes)
    # Not by np.eye, which would need the square of the number of classes.
    one_hot = (numbers[:, None] == np.arange(num_classes)).astype(np.float32)
    for labels in (numbers, numbers[:, None], numbers.astype(np.int32), one_hot):
        trials = [(outputs, labels, _cross_entropies(outputs, one_hot))]
        if labels is one_hot:
            # With one-hot labels of two classes, a loss of independent labels has the same value.
            several = rng.uniform(0.2, 1, one_hot.shape).astype(np.float32)
            trials.append((outputs, several, _cross_entropies(outputs, several)))
        yield trials


def _cross_entropies(outputs: Array, labels: Array) -> dict[Scores, float]:
    totals = np.log(np.exp(outputs).sum(axis=1, keepdims=True))
    of_each = {
        "probabilities": np.log(outputs),
        "log_probabilities": outputs,
        "logits": outputs - totals,
    }
    return {name: -float((labels * log).sum(axis=1).mean()) for name, log in of_each.items()}  # type: ignore[misc]


def _binary(shape: tuple[int, ...]) -> Iterator[list[_Trial]]:
    outputs = np.linspace(0.1, 0.85, _NUM_EXAMPLES, dtype=np.float32)
    labels = np.array([0, 1, 1, 0, 1], np.float32)
    likely = np.where(labels == 1, outputs, 1 - outputs)
    expected: dict[Scores, float] = {
        "probabilities": -float(np.log(likely).mean()),
        "logits": float((np.log1p(np.exp(outputs)) - labels * outputs).mean()),
    }
    for of_labels in dict.fromkeys([shape, (1,), ()]):
        for dtype in (np.float32, np.int64):
            rows = (outputs.reshape(-1, *shape), labels.astype(dtype).reshape(-1, *of_labels))
            yield [(*rows, expected)]
