"""A model file without an input function takes records of features and one label."""

import numpy as np
import pytest

from elasticdl.definition import Mode
from elasticdl.dialects.default_input import default_input
from elasticdl.errors import SchemaError

INPUT = default_input("model.py", object).input_fn


def rows(**columns):
    """Return records, each field a 1-D array at least, as readers without a schema do."""
    count = len(next(iter(columns.values())))
    return [{name: np.atleast_1d(v[i]) for name, v in columns.items()} for i in range(count)]


@pytest.mark.parametrize("label", ["y", "label", "labels", "target"])
def test_one_field_is_the_label_and_the_other_the_feature(label) -> None:
    x, y = INPUT(rows(**{"pixels": np.ones((3, 2, 2)), label: np.int64([0, 1, 2])}), Mode.TRAINING)

    assert (x.shape, y.tolist()) == ((3, 2, 2), [0, 1, 2])


def test_several_features_keep_their_names() -> None:
    x, _ = INPUT(rows(a=np.ones((3, 2)), b=np.ones(3), y=np.zeros(3)), Mode.TRAINING)

    assert {name: array.shape for name, array in x.items()} == {"a": (3, 2), "b": (3, 1)}


@pytest.mark.parametrize(
    ("y", "shape"),
    [(np.int64([0, 1]), (2,)), (np.float32([0, 1]), (2, 1)), (np.eye(2, dtype=np.int64), (2, 2))],
)
def test_class_labels_are_scalars_and_other_labels_have_an_axis(y, shape) -> None:
    assert INPUT(rows(x=np.ones((2, 3)), y=y), Mode.TRAINING)[1].shape == shape


def test_the_index_that_pandas_wrote_is_not_a_feature() -> None:
    x, _ = INPUT(
        rows(x=np.ones((3, 2)), __index_level_0__=np.arange(3), y=np.zeros(3)), Mode.TRAINING
    )

    assert x.shape == (3, 2)


@pytest.mark.parametrize(("of_torch", "dtype"), [(True, "int64"), (False, "bool")])
def test_a_boolean_label_is_a_number_for_pytorch_only(of_torch, dtype) -> None:
    input_fn = default_input("model.py", object, of_torch=of_torch).input_fn

    x, y = input_fn(rows(x=np.array([True, False]), y=np.array([True, False])), Mode.TRAINING)

    assert (x.dtype, y.dtype, y.shape) == (bool, dtype, (2,))


@pytest.mark.parametrize("more", [{}, {"y": np.zeros(2)}])
def test_records_to_predict_need_no_label(more) -> None:
    x, y = INPUT(rows(x=np.ones((2, 3)), **more), Mode.PREDICTION)

    assert (x.shape, y) == ((2, 3), None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": np.ones(2), "why": np.ones(2)}, "none of them is a label .a label is called y, "),
        ({"x": np.ones(2), "y": np.ones(2), "label": np.ones(2)}, "'y', 'label' could all be"),
        ({"y": np.ones(2)}, "no features beside the label"),
        ({"x": np.array([b"a", b"b"], object), "y": np.ones(2)}, "'x' is text"),
        ({"x": [np.ones(2), np.ones(3)], "y": np.ones(2)}, "'x' varies in size"),
    ],
)
def test_an_ambiguous_choice_must_be_resolved_in_the_file(columns, message) -> None:
    with pytest.raises(SchemaError, match=f"model.py has no input_fn.*{message}.*Write input_fn"):
        INPUT(rows(**columns), Mode.TRAINING)


def test_text_labels_are_answered_with_how_to_number_them() -> None:
    records = rows(x=np.ones(2), y=np.array([b"a", b"b"], object))

    with pytest.raises(SchemaError, match=r"'y' is text, .* such as 'a'") as caught:
        INPUT(records, Mode.TRAINING)

    assert "classes.index(record['y'].item().decode()) for record in records" in str(caught.value)


def test_text_may_be_returned_for_a_model_that_takes_it() -> None:
    with pytest.raises(SchemaError, match=r"strings as they are, for a model that takes text"):
        INPUT(rows(x=np.array([b"a", b"b"], object), y=np.ones(2)), Mode.TRAINING)


def test_an_evaluation_without_labels_is_answered_with_predict() -> None:
    message = "have no label .*; they have 'x'. An evaluation needs labels; use predict for data "
    with pytest.raises(SchemaError, match=message):
        INPUT(rows(x=np.ones(2)), Mode.EVALUATION)


def test_without_a_label_the_error_advises_to_rename_one() -> None:
    with pytest.raises(SchemaError, match=r"a Series keeps its name: y\.rename\(\"y\"\)\.$"):
        INPUT(rows(x=np.ones(2), progress=np.ones(2)), Mode.TRAINING)


def test_features_alone_are_answered_with_a_pair() -> None:
    with pytest.raises(SchemaError, match=r"Or call the label y: in Python, data=\(x, y\)\.$"):
        INPUT(rows(x=np.ones(2)), Mode.TRAINING)
