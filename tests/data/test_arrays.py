"""Arrays as records."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data.arrays import ArraySource
from elasticdl.data.schema import Field, Schema
from elasticdl.errors import DataError

IMAGES = np.arange(24, dtype=np.float64).reshape(4, 2, 3)
LABELS = np.array([3, 1, 0, 2], np.int8)


def test_a_row_of_each_array_is_a_record():
    source = ArraySource({"x": IMAGES, "y": LABELS}, "ward")

    assert source.num_records == 4
    (record,) = source.read_records(1, 2, None)
    assert record["x"].tolist() == [6, 7, 8, 9, 10, 11]
    assert record["y"].tolist() == [1]
    assert record["x"].dtype == np.float32
    assert [(file.uri, file.num_records) for file in source.files] == [("ward", 4)]


def test_a_schema_restores_the_shape():
    schema = Schema((Field("x", (2, 3), np.dtype("float32")), Field("y", (1,), np.dtype("int64"))))

    records = ArraySource({"x": IMAGES, "y": LABELS}, "ward").read_records(0, 4, schema)

    assert records[3]["x"].tolist() == IMAGES[3].tolist()
    assert [int(record["y"][0]) for record in records] == [3, 1, 0, 2]


def test_strings_are_stored_as_bytes():
    (record,) = ArraySource({"name": np.array(["ä"])}, "ward").read_records(0, 1, None)

    assert record["name"].tolist() == ["ä".encode()]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": IMAGES, "y": LABELS[:3]}, "x has 4, y has 3"),
        ({}, "none"),
        ({"x": np.float32(1)}, "x has 0"),
    ],
)
def test_arrays_of_different_lengths_are_refused(arrays, said):
    if said == "x has 0":
        assert ArraySource(arrays, "ward").num_records == 0
        return
    with pytest.raises(DataError, match=said):
        ArraySource(arrays, "ward")


def test_a_range_beyond_the_end_is_refused():
    with pytest.raises(IndexError):
        ArraySource({"y": LABELS}, "ward").read_bytes(0, 5)


def test_booleans_remain_booleans_without_a_schema():
    source = ArraySource({"ok": np.array([True, False]), "n": np.array([1, 2])}, "the data")

    (first, _) = source.read_records(0, 2, None)

    assert first["ok"].dtype == bool
    assert first["ok"].tolist() == [True]
    assert first["n"].dtype == np.int64
