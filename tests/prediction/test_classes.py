"""Beside the scores of a classifier are the class that they predict and its probability."""

import numpy as np
import pytest

from elasticdl.prediction.classes import ClassReading, scores_shape

P = np.float32([[0.2, 0.8], [0.9, 0.1]])


def added(scores, shape, outputs, names=()):
    found = ClassReading(scores, shape, names).with_prediction({"output": np.float32(outputs)})
    assert list(found) == ["prediction", "probability", "output"]
    return found["prediction"].tolist(), [round(float(each), 3) for each in found["probability"]]


@pytest.mark.parametrize(
    ("scores", "outputs"),
    [("probabilities", P), ("logits", 7 + np.log(P)), ("log_probabilities", np.log(P))],
)
def test_the_class_with_the_highest_score_is_predicted(scores, outputs) -> None:
    assert added(scores, (2,), outputs) == ([1, 0], [0.8, 0.9])


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_single_score_belongs_to_the_second_class(shape) -> None:
    shares = np.reshape([0.7, 0.2, 0.5], (3, *shape))

    assert added("probabilities", shape, shares) == ([1, 0, 1], [0.7, 0.8, 0.5])
    logits = np.log(shares / (1 - shares))
    assert added("logits", shape, logits) == ([1, 0, 1], [0.7, 0.8, 0.5])


@pytest.mark.parametrize(
    ("scores", "shape", "outputs", "expected"),
    [
        ("logits", (2,), P, True),
        ("logits", (2,), [*P, [0.2, 0.9]], False),
        ("logits", (2,), [*P, [-0.2, 1.2]], False),
        ("logits", (2,), [*P, [np.inf, -np.inf]], False),
        ("logits", (1,), [[0.2], [1.0]], False),
        ("probabilities", (2,), P, False),
    ],
)
def test_logits_that_all_sum_to_1_are_already_probabilities(
    scores, shape, outputs, expected
) -> None:
    columns = {"output": np.float32(outputs)}

    assert ClassReading(scores, shape).are_already_probabilities(columns) is expected


def test_large_scores_do_not_overflow() -> None:
    assert added("logits", (2,), [[1e30, 0], [-1e4, 1e4]]) == ([0, 1], [1, 1])


@pytest.mark.parametrize("scores", ["probabilities", "logits", "log_probabilities"])
def test_nan_scores_predict_no_class(scores) -> None:
    number, probability = added(scores, (2,), [[np.nan, 0.1], [0.1, 0.9]])
    assert number == [-1, 1]
    assert np.isnan(probability[0])
    assert added(scores, (), [np.nan])[0] == [-1]
    assert added(scores, (2,), [[np.nan, 0.1], [0.1, 0.9]], ("cat", "dog"))[0] == ["", "dog"]


def test_a_class_is_written_by_its_name() -> None:
    assert added("probabilities", (2,), P, ("cat", "dog")) == (["dog", "cat"], [0.8, 0.9])
    assert added("probabilities", (), [0.7], ("no", "yes")) == (["yes"], [0.7])


def test_outputs_without_a_class_in_the_data_are_numbered() -> None:
    shares = [[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.1, 0.2, 0.7]]
    assert added("probabilities", (3,), shares, ("three", "seven"))[0] == ["three", "seven", "2"]


def test_names_of_other_classes_are_not_used() -> None:
    assert added("probabilities", (2,), P, ("cat", "dog", "fox"))[0] == [1, 0]


@pytest.mark.parametrize(
    ("columns", "shape"),
    [
        ({"output": np.zeros((4, 3), np.float32)}, (3,)),
        ({"output": np.zeros(4, np.float32)}, ()),
        ({"output": np.zeros((4, 3, 2), np.float32)}, None),
        ({"output": np.zeros((4, 3), np.int64)}, None),
        ({"a": np.zeros(4), "b": np.zeros(4)}, None),
        ({"prediction": np.zeros(4)}, None),
    ],
)
def test_one_output_with_a_number_or_a_row_may_be_scores(columns, shape) -> None:
    assert scores_shape(columns) == shape


@pytest.mark.parametrize("name", ["prediction", "probability"])
def test_an_output_with_the_name_of_an_added_column_does_not_replace_it(name) -> None:
    found = ClassReading("probabilities", (2,)).with_prediction({name: P})

    assert list(found) == ["prediction", "probability", "output"]
    assert (found["prediction"].tolist(), found["output"].shape) == ([1, 0], (2, 2))
