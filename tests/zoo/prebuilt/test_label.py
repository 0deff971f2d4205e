"""A label's own values become classes, and predictions become these values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.data.schema import Schema
from elasticdl.data.table import decode_table
from elasticdl.definition import Mode
from elasticdl.errors import SchemaError, UsageError
from elasticdl.zoo.prebuilt.label import Classes, balanced, label_entry


def text(*values) -> np.ndarray:
    return np.array([*values], object).reshape(-1, 1)


def test_text_becomes_the_number_of_its_class() -> None:
    classes = Classes.of(["no", "yes"])

    ids = classes.ids(text(b"yes", "no"), "label")

    assert (ids.tolist(), ids.dtype) == ([[1], [0]], np.int64)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([10, 20], np.int64([[20], [10]])),
        ([0.1, 0.2], np.float32([[0.2], [0.1]])),
        ([False, True], np.float64([[1], [0]])),
    ],
)
def test_numbers_become_the_number_of_their_class(values, labels) -> None:
    assert Classes.of(values).ids(labels, "label").tolist() == [[1], [0]]


def test_an_unknown_label_is_reported_with_a_similar_class() -> None:
    with pytest.raises(
        SchemaError,
        match=r"'who' has the value 'rihc', .* classes 'poor', 'rich'\. Did .* 'rich'\?",
    ):
        Classes.of(["poor", "rich"]).ids(text(b"rihc"), "who")
    with pytest.raises(SchemaError, match=r"Did you mean 'rich'\?"):
        Classes.of(["poor", "rich"]).ids(text(b"RICH"), "who")


@pytest.mark.parametrize(
    ("classes", "labels"), [([0, 1], [-1.0]), (["0", "1"], [b"-1"]), (["cat", "owl"], [b"-1"])]
)
def test_a_label_of_minus_one_is_explained(classes, labels) -> None:
    with pytest.raises(
        SchemaError,
        match=r"(1|owl)'?\. If the label is a ClassLabel .*row\['who'\] >= 0\)\. They can be "
        r"predicted afterwards\. Otherwise, train with all values of the label \(.* `classes`\)\.$",
    ):
        Classes.of(classes).ids(np.array(labels), "who")


def test_no_similar_class_is_suggested_for_a_number() -> None:
    with pytest.raises(SchemaError, match=r"value 11, .* classes 1, 2\. Leave"):
        Classes.of([1, 2]).ids(np.float64([11]), "who")


@pytest.mark.parametrize("values", [pa.array([1, 0]), pa.array([1.0, 0.0]), pa.array(["1", "0"])])
def test_numbers_in_place_of_text_are_answered_with_the_classes(values) -> None:
    classes = Classes.of(["benign", "malignant"])
    schema = Schema.from_user([label_entry("target", classes)])
    records = decode_table(pa.table({"target": values}), schema, str)

    with pytest.raises(SchemaError, match=r"value 1, .* 'benign', 'malignant'\. If the numbers"):
        classes.ids(text(*(record["target"].item() for record in records)), "target")
    with pytest.raises(SchemaError, match=r"value 'nan', .* 'benign', 'malignant'\. Leave such"):
        classes.ids(text(b"nan"), "target")
    with pytest.raises(SchemaError, match=r"classes '0', '2'\. Leave such rows out"):
        Classes.of(["0", "2"]).ids(text(b"1"), "target")


@pytest.mark.parametrize("labels", [text(None), np.float64([[np.nan]])])
def test_a_missing_label_is_named(labels) -> None:
    with pytest.raises(SchemaError, match="Field 'who', .* has no value in a row"):
        Classes.of(["poor", "rich"]).ids(labels, "who")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "expected a list of the label's values"),
        ("no, yes", "expected a list of the label's values"),
        (["no", 1], "expected a list of the label's values, all text or all numbers"),
        (["no"], "a constant label"),
        (["no", "no"], "has 'no' twice"),
        ([1, 2, 1.0], "has 1 twice"),
    ],
)
def test_classes_must_be_different_values_of_one_type(values, message) -> None:
    with pytest.raises(UsageError, match=message):
        Classes.of(values)


def test_a_prediction_is_the_most_likely_class() -> None:
    outputs = np.float32([[0.25, 0.75], [0.5, 0.5]])

    written = Classes.of(["no", "yes"]).predictions(outputs)

    assert written["prediction"].tolist() == ["yes", "no"]
    assert written["probability"].tolist() == [0.75, 0.5]
    assert written["output"] is outputs


def test_balanced_classes_have_equal_total_weight() -> None:
    weights = balanced([30, 10, 0], 3)

    assert 30 * weights[0] == pytest.approx(10 * weights[1]) == pytest.approx(20)
    assert 2 not in weights


@pytest.mark.parametrize("counts", [[1], [1, -1], [0, 0]])
def test_each_class_needs_a_count(counts) -> None:
    with pytest.raises(UsageError, match="expected the number of rows of each of the 2 classes"):
        balanced(counts, 2)


def test_the_number_of_classes_follows_from_their_values() -> None:
    from elasticdl.zoo.prebuilt.classifier import DNN

    model = DNN(classes=["a", "b", "c"], class_counts=[1, 1, 2])
    rows = [{"x": np.array([1.0]), "label": text(value)[0]} for value in ("c", "a")]
    features, labels = model.default_input(rows, Mode.TRAINING)

    assert model(features).shape == (2, 3)
    assert labels.tolist() == [[2], [0]]
    assert model.default_class_weight()[2] == pytest.approx(2 / 3)
    assert model.default_loss(model(features), labels).shape == (2,)
    with pytest.raises(UsageError, match="num_classes is 2, but classes has 3"):
        DNN(num_classes=2, classes=["a", "b", "c"])


def test_a_classifier_without_classes_writes_its_outputs() -> None:
    from elasticdl.zoo.prebuilt.classifier import DNN

    model = DNN()

    assert model.default_predictions(np.zeros((1, 2))) is None
    assert model.data_schema() is None
    assert model.default_class_weight() is None
