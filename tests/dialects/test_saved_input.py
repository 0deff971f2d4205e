"""From records to what a saved model takes."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.definition import Mode
from elasticdl.dialects.saved_input import BatchSignature, InputSignature, SavedInput
from elasticdl.errors import DataError

IMAGE = InputSignature("image_input", (2, 3, 1))


def made(records, inputs=(IMAGE,), mode=Mode.TRAINING, num_classes=0, rows=True, **given):
    taken = BatchSignature(list(inputs), num_classes, one_hot=rows and num_classes > 0)
    return SavedInput(lambda: taken, "model.yml:1", **given)(records, mode)


def records(num=2, **fields):
    fields = fields or {"image": np.arange(6), "label": np.array([1])}
    return [{name: np.asarray(value) for name, value in fields.items()} for _ in range(num)]


def test_flat_numbers_get_the_models_shape_and_dtype():
    features, labels = made(records())

    assert features.shape == (2, 2, 3, 1)
    assert features.dtype == np.float32
    assert features[0].reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    assert labels.tolist() == [1, 1]


def test_an_unknown_axis_is_inferred():
    features, _ = made(records(), [InputSignature("x", (None, 2))])

    assert features.shape == (2, 3, 2)


def test_class_numbers_become_one_hot_rows_if_the_loss_compares_rows():
    _, labels = made(records(), num_classes=3)

    assert labels.tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize(("rows", "said"), [(False, True), (True, None), (True, True)])
def test_the_user_can_request_one_hot_rows(rows, said):
    _, labels = made(records(), num_classes=3, rows=rows, one_hot=said)

    assert labels.tolist() == [[0, 1, 0], [0, 1, 0]]


def test_the_user_can_keep_class_numbers():
    assert made(records(), num_classes=3, one_hot=False)[1].tolist() == [1, 1]


def test_boolean_labels_become_numbers():
    _, labels = made(records(image=np.arange(6), label=np.array([True])), num_classes=2, rows=False)

    assert (labels.dtype, labels.tolist()) == (np.int64, [1, 1])


def test_one_hot_labels_are_kept():
    rows = records(image=np.arange(6), label=np.float32([0, 1, 0]))

    assert made(rows, num_classes=3)[1].tolist() == [[0, 1, 0], [0, 1, 0]]


def test_several_fields_are_joined_into_one_row():
    rows = records(a=[1.0], b=[2.0], y=[3])

    features, labels = made(rows, [InputSignature("x", (2,))])

    assert features.tolist() == [[1, 2], [1, 2]]
    assert labels.tolist() == [3, 3]


def test_several_inputs_get_the_fields_with_their_names():
    rows = records(left=[1.0], right=[2.0, 3.0], label=[0])
    inputs = [InputSignature("right", (2,)), InputSignature("left", (1,))]

    features, _ = made(rows, inputs)

    assert {name: array.tolist() for name, array in features.items()} == {
        "right": [[2, 3], [2, 3]],
        "left": [[1], [1]],
    }


def test_prediction_needs_no_label():
    features, labels = made(records(image=np.arange(6)), mode=Mode.PREDICTION)

    assert features.shape == (2, 2, 3, 1)
    assert labels is None


def test_names_can_be_given():
    rows = records(image=np.arange(6), digit=[2], label=[0])

    _, labels = made(rows, label="digit", features=["image"])

    assert labels.tolist() == [2, 2]


MISTAKES = {
    "too few numbers": (
        records(image=[1, 2], label=[0]),
        {},
        "2 numbers; the model takes 2 x 3 x 1 (6)",
    ),
    "no label": (
        records(image=np.arange(6), digit=[0]),
        {},
        "image, digit. Specify the label",
    ),
    "a label that is not there": (records(), {"label": "digit"}, "no field 'digit'"),
    "a feature that is not there": (records(), {"features": ["x"]}, "no field x"),
    "a class too many": (records(), {"num_classes": 1}, "the label label is 1; the model has 1"),
    "rows of a model that says no classes": (
        records(),
        {"one_hot": True},
        "does not define its number of classes",
    ),
    "only a label": (records(label=[0]), {}, "no field except label"),
    "texts among numbers": (
        records(a=[1.0], b=np.array([b"x"], object), label=[0]),
        {"inputs": [InputSignature("x", (2,))]},
        "b is text",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mismatched_records_are_refused_with_an_explanation(what):
    rows, given, said = MISTAKES[what]

    with pytest.raises(DataError) as raised:
        made(rows, **given)

    assert said in str(raised.value)


def test_examples_of_several_sizes_are_refused():
    rows = [*records(1), *records(1, image=np.arange(5), label=[1])]

    with pytest.raises(DataError, match="5 numbers in one record and 6 in another"):
        made(rows)
