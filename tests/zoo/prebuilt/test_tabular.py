"""Rows of any table become numbers and tokens; what is predicted is left out."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.definition import Mode
from elasticdl.errors import SchemaError
from elasticdl.zoo.prebuilt.tabular import features_and_label


def row(**fields) -> dict[str, np.ndarray]:
    return {name: np.array([value]) for name, value in fields.items()}


def test_numbers_are_ordered_by_name() -> None:
    features, _ = features_and_label(
        [row(b=2, label=0, a=1.5), row(a=3, b=4, label=1)], Mode.TRAINING, label="label"
    )

    np.testing.assert_array_equal(features["numbers"], np.float32([[1.5, 2], [3, 4]]))
    assert features["numbers"].dtype == np.float32


def test_a_field_of_several_numbers_gives_several_features() -> None:
    rows = [{"where": np.array([1.0, 2.0]), "label": np.array([0])}]

    features, _ = features_and_label(rows, Mode.TRAINING, label="label")

    np.testing.assert_array_equal(features["numbers"], [[1.0, 2.0]])


def test_equal_texts_get_equal_tokens_only_within_a_field() -> None:
    rows = [row(role=b"x", city=b"x", label=0), row(role=b"x", city=b"y", label=0)]

    features, _ = features_and_label(rows, Mode.TRAINING, label="label")

    (city, role), (other_city, same_role) = features["tokens"].tolist()
    assert role == same_role
    assert len({city, other_city, role}) == 3


def test_text_and_bytes_are_equivalent() -> None:
    rows = [row(role=b"clerk", label=0)], [row(role="clerk", label=0)]

    tokens = [features_and_label(r, Mode.TRAINING, label="label")[0]["tokens"] for r in rows]

    np.testing.assert_array_equal(*tokens)


def test_label_and_ignored_fields_are_not_features() -> None:
    features, label = features_and_label(
        [row(id=7, pay=3, age=31)], Mode.TRAINING, label="pay", ignore=["id"]
    )

    assert (features["numbers"].tolist(), label.tolist()) == ([[31.0]], [[3]])


def test_prediction_ignores_the_label() -> None:
    without, _ = features_and_label([row(age=31)], Mode.PREDICTION, label="pay")
    features, label = features_and_label([row(age=31, pay=3)], Mode.PREDICTION, label="pay")

    assert label is None
    np.testing.assert_array_equal(features["numbers"], without["numbers"])


def test_a_missing_label_is_reported_with_existing_fields() -> None:
    with pytest.raises(SchemaError, match=r"no field 'label'.* they have age, pay\..*--params="):
        features_and_label([row(age=31, pay=3)], Mode.TRAINING, label="label")


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        # No field is likelier than others: the last one least of all.
        (("age", "species", "width"), r"age, species, width\. .* --params='label=\"NAME\"'"),
        (("Label", "width"), r"Label, width; did you mean 'Label'\? .* --params='label=\"Label\"'"),
    ],
)
def test_a_hint_for_the_label_is_not_a_guess(fields: tuple[str, ...], hint: str) -> None:
    with pytest.raises(SchemaError, match=hint):
        features_and_label([row(**dict.fromkeys(fields, 1))], Mode.TRAINING, label="label")


def test_a_row_without_a_field_is_named() -> None:
    with pytest.raises(SchemaError, match="Row 1 of a batch has no field 'age'"):
        features_and_label([row(age=31, pay=3), row(pay=3)], Mode.TRAINING, label="pay")


def test_rows_of_unequal_length_are_refused() -> None:
    rows = [row(label=0) | {"x": np.zeros(n)} for n in (1, 2)]

    with pytest.raises(SchemaError, match="Field 'x' has 1 or 2 values"):
        features_and_label(rows, Mode.TRAINING, label="label")


def test_images_are_for_another_model() -> None:
    rows = [row(label=0) | {"image": np.zeros((n, 4, 3), np.uint8)} for n in (4, 5)]

    with pytest.raises(SchemaError, match="this is a model for tables. .* --model_def=cifar10"):
        features_and_label(rows, Mode.TRAINING, label="label")


def test_a_table_with_only_labels_is_refused() -> None:
    with pytest.raises(SchemaError, match="no features to learn 'label' from"):
        features_and_label([row(label=0)], Mode.TRAINING, label="label")


@pytest.mark.parametrize("label", [2, -1, 0.5])
def test_a_label_that_is_not_a_class_is_named(label: float) -> None:
    from elasticdl.zoo.prebuilt.classifier import DNN

    with pytest.raises(SchemaError, match=f"value {label}; a class is a whole number from 0 to 1"):
        DNN(num_classes=2).default_input([row(x=1.0, label=label)], Mode.TRAINING)


def test_the_label_minus_one_has_advice_of_its_own() -> None:
    from elasticdl.zoo.prebuilt.classifier import DNN

    with pytest.raises(
        SchemaError,
        match=r"0 to 1\. If the label is a ClassLabel .* >= 0\)\. .* Otherwise, number the classes "
        r"from 0, or list the values of the label: --params='classes=\[\.\.\.\]'\.$",
    ):
        DNN(num_classes=2).default_input([row(x=1.0, label=-1)], Mode.TRAINING)
