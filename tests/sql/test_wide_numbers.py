"""Whole numbers beyond 2^53, such as snowflake ids and nanoseconds since 1970."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.data.column_summary import Summarizer
from elasticdl.data.schema import Schema
from elasticdl.data.table import decode_table
from elasticdl.errors import DataError
from elasticdl.sql.execute import SqlSession, execute
from elasticdl.zoo.prebuilt.columns import Columns
from elasticdl.zoo.prebuilt.label import Classes, label_entry

WIDE = 2**53
SHORT = "hidden_units=[4], train.num_epochs=1"
TYPES = [pa.int64(), pa.uint64(), pa.decimal128(38, 0)]


def ids_of(feature, table) -> list[int]:
    columns = Columns.of([feature], "y")
    records = decode_table(table, Schema.from_user(columns.schema()), str)
    return columns.arrays(records)["ids"].ravel().tolist()


@pytest.mark.parametrize("type_", TYPES)
def test_categories_are_distinguished_by_their_last_digit(type_) -> None:
    table = pa.table({"a": pa.array([WIDE, WIDE + 1, None, WIDE + 2, 7], type_)})
    words = {"kind": "category", "column": "a", "vocabulary": [WIDE, WIDE + 1], "dtype": "int64"}
    hashed = {"kind": "category", "column": "a", "buckets": 10_000, "dtype": "int64"}

    assert ids_of(words, table) == [0, 1, 3, 2, 2]
    first, second, missing, *_, small = ids_of(hashed, table)
    assert first != second
    assert missing == 10_000
    # As before such numbers were read, and as in a file of text.
    assert [small] == ids_of(hashed, pa.table({"a": [7.0]}))
    assert [small] == ids_of(hashed, pa.table({"a": [" 07"]}))


def test_sequences_of_ids_are_distinguished_by_their_last_digit() -> None:
    words = {"kind": "sequence", "column": "a", "vocabulary": [WIDE, WIDE + 1], "dtype": "int64"}
    columns = Columns.of([words], "y")
    table = pa.table({"a": [[WIDE + 1, WIDE, 3], [WIDE]]})
    records = decode_table(table, Schema.from_user(columns.schema()), str)

    assert columns.arrays(records)["sequence_a"].tolist() == [[1, 0, 2], [0, 3, 3]]


@pytest.mark.parametrize("type_", TYPES)
def test_numbers_are_rounded_to_float(type_) -> None:
    columns = Columns.of([{"kind": "number", "column": "a"}], "y")
    table = pa.table({"a": pa.array([WIDE + 1, None], type_)})
    found = columns.arrays(decode_table(table, Schema.from_user(columns.schema()), str))

    assert found["numbers"].tolist() == [[float(WIDE)], [0.0]]


@pytest.mark.parametrize("type_", TYPES)
def test_classes_are_distinguished_by_their_last_digit(type_) -> None:
    classes = Classes.of([WIDE, WIDE + 1])
    schema = Schema.from_user([label_entry("y", classes)])
    labels = decode_table(pa.table({"y": pa.array([WIDE + 1, WIDE], type_)}), schema, str)

    found = classes.ids(np.array([record["y"].item() for record in labels], object), "y")
    assert found.tolist() == [1, 0]
    assert classes.predictions(np.eye(2))["prediction"].tolist() == [WIDE, WIDE + 1]


def test_a_column_may_be_both_a_number_and_a_category() -> None:
    table = pa.table({"a": pa.array([WIDE + 1, None], pa.int64())})
    number = {"kind": "number", "column": "a"}
    words = {"kind": "category", "column": "a", "vocabulary": [WIDE, WIDE + 1], "dtype": "int64"}
    for features in ([number, words], [words, number]):
        columns = Columns.of(features, "y")
        found = columns.arrays(decode_table(table, Schema.from_user(columns.schema()), str))
        assert found["numbers"].tolist() == [[float(WIDE)], [0.0]]
        assert found["missing"].tolist() == [[0.0], [1.0]]
        assert found["ids"].tolist() == [[1], [3]]


def test_a_summary_counts_wide_numbers_exactly() -> None:
    for type_ in TYPES:
        column = Summarizer("a", type_)
        column.add(pa.array([WIDE, WIDE + 1, WIDE + 1], type_))
        found = column.summary()
        assert found.values == ((WIDE + 1, 2), (WIDE, 1))
        assert found.is_wide
        assert not found.is_constant
        assert found.minimum == WIDE


def test_a_table_of_wide_numbers_is_filled_exactly(tmp_path, capfd) -> None:
    *_, rows = [
        [row for batch in result.rows.batches for row in batch.to_pylist()] if result.rows else []
        for result in execute(
            "CREATE TABLE t AS SELECT 1300000000000000000 + i AS id, 18446744073709551615::UBIGINT "
            f"- (i % 3)::UBIGINT AS u, {WIDE} + i % 2 AS kind FROM range(60) r(i);"
            f"SELECT id, u, kind FROM t TO TRAIN classifier.DNN WITH {SHORT} "
            "COLUMN id, CATEGORY_HASH(id, 50), CATEGORY_ID(u) LABEL kind INTO m;"
            "SELECT id, u FROM t TO PREDICT p.kind USING m;"
            "SELECT id, u FROM t TO PREDICT t.again USING m;"
            "SELECT count(*) AS n FROM p JOIN t USING (id, u) WHERE p.kind = t.again "
            f"AND p.kind IN ({WIDE}, {WIDE + 1})",
            SqlSession("duckdb://", str(tmp_path)),
        )
    ]

    assert rows == [{"n": 60}]
    assert "Column 'id' has whole numbers beyond 2^53" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("label", "model", "problem"),
    [
        ("18446744073709551615::HUGEINT * 4 + i % 2", "classifier", "more than 64 bits"),
        (f"{WIDE} * 512 + i", "regressor", "cannot tell them apart"),
    ],
)
def test_numbers_with_too_many_digits_are_refused(label, model, problem, tmp_path) -> None:
    statement = (
        f"SELECT i, {label} AS y FROM range(30) r(i) TO TRAIN {model}.DNN WITH {SHORT} INTO m;"
    )
    with pytest.raises(DataError, match=problem):
        list(execute(statement, SqlSession("duckdb://", str(tmp_path))))


def test_classes_on_both_sides_of_2_63_are_trained_on_and_filled(tmp_path) -> None:
    both = [5, 2**63 + 1]
    *_, made, kinds = [
        [row for batch in result.rows.batches for row in batch.to_pylist()] if result.rows else []
        for result in execute(
            "CREATE TABLE t AS SELECT i AS id, i % 2 AS a, CASE WHEN i % 2 = 0 THEN 5::UBIGINT "
            "ELSE 9223372036854775809::UBIGINT END AS kind FROM range(60) r(i);"
            f"SELECT a, kind FROM t TO TRAIN classifier.DNN WITH {SHORT} INTO m;"
            "SELECT id, a FROM t TO PREDICT p.kind USING m;"
            "SELECT a FROM t TO PREDICT t.again USING m;"
            "SELECT a FROM t WHERE false TO PREDICT empty.kind USING m;"
            "SELECT table_name, data_type FROM information_schema.columns "
            "WHERE column_name IN ('kind', 'again') ORDER BY table_name, column_name;"
            "SELECT p.kind, again FROM t JOIN p USING (id) WHERE p.kind <> t.again "
            "OR p.kind NOT IN (5, 9223372036854775809)",
            SqlSession("duckdb://", str(tmp_path)),
        )
    ]

    assert kinds == []
    assert [(row["table_name"], row["data_type"]) for row in made] == [
        (table, "UBIGINT") for table in ("empty", "p", "t", "t")
    ]
    predicted = Classes.of(both).predictions(np.eye(2))["prediction"]
    assert predicted.tolist() == both
