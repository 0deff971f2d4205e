"""Features of a COLUMN clause follow from what all rows of a column hold."""

from __future__ import annotations

import pyarrow as pa
import pytest

from elasticdl.data.column_summary import Summarizer
from elasticdl.sql.features import resolve


def summary(name: str, values, arrow_type=None):
    array = pa.array(values, arrow_type)
    summarizer = Summarizer(name, array.type)
    summarizer.add(array)
    return summarizer.summary()


@pytest.mark.parametrize(
    ("type_", "kind", "dtype"),
    [
        (pa.int32(), "category", {"dtype": "int64"}),
        (pa.string(), "category", {}),
        (pa.list_(pa.int64()), "sequence", {"dtype": "int64"}),
    ],
)
def test_integers_are_hashed_as_numbers(type_, kind, dtype) -> None:
    value = {"category": "1", "sequence": [1]}[kind]
    value = 1 if pa.types.is_integer(type_) else value
    feature = {"kind": kind, "column": "x", "buckets": 10}

    assert resolve(feature, [summary("x", [value], type_)]) == {**feature, **dtype}


def test_a_clause_gets_the_most_frequent_values_of_its_column() -> None:
    columns = [summary("x", ["a"] * 3 + ["b"] * 2 + ["c"] * 4)]
    feature = {
        "kind": "indicator",
        "of": {"kind": "category", "column": "x", "derive": {"size": 2}},
    }

    assert resolve(feature, columns) == {
        "kind": "indicator",
        "of": {"kind": "category", "column": "x", "vocabulary": ["a", "c"]},
    }
