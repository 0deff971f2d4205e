"""What a network makes of features: the layers of Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elasticdl.zoo.prebuilt.column_layers import (
    ColumnTower,
    ColumnWide,
    IdsOf,
    IdVector,
)
from elasticdl.zoo.prebuilt.columns import Columns

ROLE = {"kind": "category", "column": "role", "vocabulary": ["clerk", "boss"]}
AGE = {"kind": "number", "column": "age"}


def columns(*entries) -> Columns:
    return Columns.of(entries, "label")


def test_a_missing_number_has_its_own_bucket() -> None:
    bucket = {"kind": "bucket", "of": AGE, "boundaries": [18, 65]}
    found = columns(bucket)
    rows = [{"age": np.float64(age)} for age in (17, 18, 64.5, 65, np.nan)]

    ids = IdsOf(found.features[0], found)(found.arrays(rows))

    assert np.ravel(ids).tolist() == [0, 1, 1, 2, 3]


def test_a_cross_uses_the_keras_hash() -> None:
    found = columns({"kind": "cross", "of": [ROLE, ROLE | {"vocabulary": ["cook"]}], "buckets": 7})
    inputs = {"ids": np.int32([[0, 1], [1, 0], [0, 1]])}

    ids = np.ravel(IdsOf(found.features[0], found)(inputs))

    expected = keras.layers.HashedCrossing(7)((np.int64([0, 1, 0]), np.int64([1, 0, 1])))
    assert ids.tolist() == np.array(expected).tolist()


def test_an_indicator_has_an_input_for_each_id() -> None:
    found = columns({"kind": "indicator", "of": ROLE})

    encoded = IdVector(found.features[0], found)({"ids": np.int32([[1], [3]])})

    assert np.array(encoded).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("combiner", "of_two"), [("mean", 1.5), ("sum", 3.0), ("sqrtn", 3 / np.sqrt(2))]
)
def test_a_sequence_is_combined_without_padding(combiner, of_two) -> None:
    tags = {"kind": "sequence", "column": "tags", "vocabulary": ["a", "b"]}
    found = columns({"kind": "embedding", "of": tags, "dimension": 1, "combiner": combiner})
    vector = IdVector(found.features[0], found)
    vector.build({})
    vector._embed.set_weights([np.float32([[1], [2], [3], [100]])])

    combined = vector({"sequence_tags": np.int32([[0, 1], [1, 3], [3, 3]])})

    np.testing.assert_allclose(combined, [[of_two], [2], [0]], rtol=1e-6)


def test_the_indicator_of_a_sequence_marks_its_ids() -> None:
    tags = {"kind": "sequence", "column": "tags", "vocabulary": ["a", "b"]}
    found = columns({"kind": "indicator", "of": tags})

    encoded = IdVector(found.features[0], found)({"sequence_tags": np.int32([[1, 1], [0, 3]])})

    assert np.array(encoded).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_small_categories_are_indicators_and_large_ones_embeddings() -> None:
    found = columns(ROLE)

    few, many = ColumnTower(found, [3], 4), ColumnTower(found, [3], 2)
    for tower in (few, many):
        tower({"ids": np.int32([[0]])})

    assert [weight.shape for weight in few.weights] == [(4, 3), (3,)]
    assert [weight.shape for weight in many.weights] == [(4, 2), (2, 3), (3,)]


def test_a_nullable_number_adds_an_input() -> None:
    inputs = {"numbers": np.float32([[1.0]]), "missing": np.float32([[0.0]])}
    widths = {}
    for nullable in (False, True):
        tower = ColumnTower(columns({**AGE, "nullable": nullable}), [3], 4)
        tower(inputs)
        widths[nullable] = tower.trainable_weights[0].shape[0]

    assert widths == {False: 1, True: 2}


def test_the_wide_part_starts_at_zero() -> None:
    found = columns(ROLE, {**ROLE, "column": "city"})

    wide = ColumnWide(found, 2)

    assert np.array(wide({"ids": np.int32([[0, 1], [2, 3]])})).tolist() == [[0, 0], [0, 0]]
    # A weight for each value of the two, and for their pairs.
    assert [weight.shape for weight in wide.weights] == [(4, 2), (4, 2), (1024, 2)]
