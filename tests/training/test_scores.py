"""What outputs are is decided by the value of the loss, for labels of any form."""

import numpy as np
import pytest

from elasticdl.training.scores import scores_by_loss


def picked(outputs, labels):
    """Return the outputs of the true classes; labels are numbers, in one column or none."""
    return np.take_along_axis(outputs, np.reshape(labels, (len(outputs), 1)), axis=1)[:, 0]


def softmax(z):
    return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("loss", "scores"),
    [
        (lambda p, y: -np.log(picked(p, y)), "probabilities"),
        (lambda z, y: -np.log(picked(softmax(z), y)).mean(), "logits"),
        (lambda z, y: -picked(z, y), "log_probabilities"),
        (lambda p, y: -(y * np.log(p)).sum(axis=1), "probabilities"),
        (lambda z, y: -(y * np.log(softmax(z))).sum(axis=1), "logits"),
        (lambda z, y: (z - y) ** 2, None),
        (lambda z, y: -2 * np.log(picked(softmax(z), y)), None),
        (lambda z, y: 1 / 0, None),
    ],
)
@pytest.mark.parametrize("num_classes", [2, 3, 40])
def test_a_cross_entropy_is_recognized_by_its_values(loss, scores, num_classes) -> None:
    assert scores_by_loss(loss, (num_classes,)) == scores


def binary(p, y):
    assert p.shape == y.shape
    return -(y * np.log(p) + (1 - y) * np.log(1 - p))


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(
    ("loss", "scores"),
    [
        (lambda p, y: binary(p.ravel(), y.ravel()), "probabilities"),
        (lambda z, y: binary(1 / (1 + np.exp(-z)), y), "logits"),
        (lambda z, y: np.abs(z - y), None),
    ],
)
def test_a_single_output_is_the_score_of_the_second_class(loss, scores, shape) -> None:
    assert scores_by_loss(loss, shape) == scores


def test_two_independent_labels_are_not_two_classes() -> None:
    assert scores_by_loss(binary, (2,)) is None
