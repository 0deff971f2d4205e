"""Features follow from what all rows of a column hold."""

from __future__ import annotations

import pyarrow as pa
import pytest

from elasticdl.data.column_summary import Summarizer
from elasticdl.sql.features import derive, resolve


def summary(name: str, values, arrow_type=None):
    array = pa.array(values, arrow_type)
    summarizer = Summarizer(name, array.type)
    summarizer.add(array)
    return summarizer.summary()


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([1, 2], {"kind": "number"}),
        ([1.5, None], {"kind": "number", "nullable": True}),
        ([True, False], {"kind": "number"}),
        (["b", "a", "b", "a"], {"kind": "category", "vocabulary": ["a", "b"]}),
        (["a", "a", "once"], {"kind": "category", "vocabulary": ["a"]}),
        ([[1, 2], [3, 4]], {"kind": "number", "size": 2}),
        ([f"{i // 2}" for i in range(4000)], {"kind": "category", "buckets": 2048}),
    ],
)
def test_a_column_makes_the_feature_of_its_kind(values, feature) -> None:
    column = summary("x", values)

    assert derive([column], "y").columns == [{"column": "x", **feature}]


@pytest.mark.parametrize(
    ("type_", "cycles"),
    [
        (pa.timestamp("s"), {}),
        (pa.timestamp("us", "UTC"), {}),
        (pa.date32(), {"cycles": ["year", "week"]}),
        (pa.time64("us"), {"cycles": ["day"]}),
    ],
)
def test_times_are_looked_at_in_the_cycles_that_they_have_a_place_in(type_, cycles) -> None:
    column = summary("x", [0, 1], type_)

    assert derive([column], "y").columns == [{"kind": "time", "column": "x", **cycles}]


def test_a_summary_of_times_counts_in_seconds() -> None:
    for type_, seconds in [(pa.date32(), 86400.0), (pa.time32("s"), 1.0), (pa.time64("us"), 1e-6)]:
        column = summary("x", [0, 1], type_)

        assert (column.minimum, column.maximum) == (0.0, seconds)


@pytest.mark.parametrize(
    ("type_", "kind", "dtype"),
    [
        (pa.int32(), "category", {"dtype": "int64"}),
        (pa.string(), "category", {}),
        (pa.list_(pa.int64()), "sequence", {"dtype": "int64"}),
    ],
)
def test_whole_numbers_are_hashed_as_numbers(type_, kind, dtype) -> None:
    value = {"category": "1", "sequence": [1]}[kind]
    value = 1 if pa.types.is_integer(type_) else value
    feature = {"kind": kind, "column": "x", "buckets": 10}

    assert resolve(feature, [summary("x", [value], type_)]) == {**feature, **dtype}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None, None], "no value"),
        ([3, 3], "same in every row"),
        ([f"id{i}" for i in range(100)], "no value occurs twice"),
        ([{"a": 1}, {"a": 2}], "nothing can be learned"),
        ([[1], [1, 2]], "differ in length"),
    ],
)
def test_what_says_nothing_is_left_out_with_its_reason(values, reason) -> None:
    derived = derive([summary("x", values)], "y")

    assert derived.columns == []
    assert reason in derived.left_out["x"]


def test_the_label_is_no_feature() -> None:
    assert derive([summary("y", [1, 2])], "y").columns == []


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
