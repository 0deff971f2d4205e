"""What a model says of an example, as one value."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.evaluation.outcomes import outcomes, read

PROBABLE = np.float32([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])


def judged(labels, outputs):
    return outcomes(read(labels, outputs), labels, outputs, len(outputs))


@pytest.mark.parametrize(
    "labels",
    [
        np.int64([1, 1, 0]),
        np.int64([[1], [1], [0]]),
        np.float32([1, 1, 0]),
        np.float32([[0, 1], [0, 1], [1, 0]]),
    ],
)
def test_labels_are_numbers_or_one_hot(labels) -> None:
    found = judged(labels, PROBABLE)

    assert found.labels.tolist() == [1, 1, 0]
    assert found.predictions.tolist() == [1, 0, 0]
    assert found.correct.tolist() == [True, False, True]
    np.testing.assert_allclose(found.confidences, [0.9, 0.8, 0.5], rtol=1e-6)


def test_confidence_of_logits_is_their_softmax() -> None:
    logits = np.float32([[2.0, 0.0, -1.0], [1000.0, 0.0, 0.0]])

    assert read(np.int64([0, 1]), logits).scores == "logits"
    expected = np.exp(2) / (np.exp(2) + 1 + np.exp(-1))
    np.testing.assert_allclose(judged(np.int64([0, 1]), logits).confidences, [expected, 1.0])


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_two_classes_of_one_output_are_separated_at_one_half(shape) -> None:
    found = judged(np.float32([1, 1, 0]), np.float32([0.5, 0.3, 0.1]).reshape(shape))

    assert found.predictions.tolist() == [1, 0, 0]
    assert found.correct.tolist() == [True, False, True]
    np.testing.assert_allclose(found.confidences, [0.5, 0.7, 0.9], rtol=1e-6)


def test_two_classes_of_one_logit_are_separated_at_zero() -> None:
    found = judged(np.int64([1, 0]), np.float32([3.0, -2.0]))

    assert found.predictions.tolist() == [1, 0]
    np.testing.assert_allclose(found.confidences, 1 / (1 + np.exp([-3.0, -2.0])))


def test_a_number_is_neither_right_nor_wrong() -> None:
    found = judged(np.float32([[1.5], [2.5]]), np.float32([[1.0], [3.0]]))

    assert found.labels.tolist() == [1.5, 2.5]
    assert found.predictions.tolist() == [1.0, 3.0]
    assert found.correct.tolist() == [None, None]
    assert found.confidences.tolist() == [None, None]


@pytest.mark.parametrize(
    ("labels", "outputs"),
    [
        (np.zeros((2, 4, 4)), np.zeros((2, 4, 4, 3))),
        (np.float32([[1, 1, 0], [0, 1, 1]]), np.float32([[0.2, 0.4, 0.9]] * 2)),
        (np.float32([[0.5, 1.5], [1, 2]]), np.float32([[3, 4], [5, 6]])),
        (None, np.float32([[3, 4], [5, 6]])),
        (np.array(["a", "b"]), np.float32([[0.5, 0.5]] * 2)),
        (np.int64([0, 1]), {"a": np.zeros(2), "b": np.zeros(2)}),
    ],
)
def test_values_that_are_not_scalars_are_omitted(labels, outputs) -> None:
    found = outcomes(read(labels, outputs), labels, outputs, 2)

    for column in (found.labels, found.predictions, found.confidences, found.correct):
        assert column.tolist() == [None, None]


def test_a_missing_prediction_is_not_correct() -> None:
    found = judged(np.int64([0, 1]), np.float32([[np.nan, 0.1], [0.1, 0.9]]))

    assert found.predictions.tolist() == [None, 1]
    assert found.confidences.mask.tolist() == [True, False]
    assert found.correct.tolist() == [False, True]


def test_a_label_that_is_not_a_class_is_omitted() -> None:
    reading = read(np.int64([0, 1]), PROBABLE[:2])

    found = outcomes(reading, np.int64([-1, 1]), PROBABLE[:2], 2)

    assert found.labels.tolist() == [None, 1]
    assert found.correct.tolist() == [None, False]


def test_predictions_from_probabilities_need_no_labels() -> None:
    found = outcomes(read(None, PROBABLE), None, PROBABLE, 3)

    assert found.predictions.tolist() == [1, 0, 0]
    assert found.correct.tolist() == [None] * 3
