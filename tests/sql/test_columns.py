"""COLUMN clauses become features; what does not fit is refused with its place."""

from __future__ import annotations

import pytest

from elasticdl.sql.columns import features_of
from elasticdl.sql.parse import parse
from elasticdl.sql.statements import StatementError

NAMES = ["age", "role", "city", "tags"]


def features(clause: str) -> list[dict]:
    program = f"SELECT 1 TO TRAIN m COLUMN {clause} INTO x"
    return features_of(parse(program)[0].columns, NAMES, program)


@pytest.mark.parametrize(
    ("clause", "feature"),
    [
        ("age", {"derive": {}, "column": "age"}),
        ("DENSE(age, 3, ',')",
         {"kind": "number", "column": "age", "size": 3, "delimiter": ","}),
        ("SPARSE(tags, 100, COMMA)",
         {"kind": "sparse", "column": "tags", "size": 100, "delimiter": ","}),
        ("category_id(role, 10)", {"kind": "category", "column": "role", "derive": {"size": 10}}),
        ("CATEGORY_HASH(role, 64)", {"kind": "category", "column": "role", "buckets": 64}),
        ("SEQ_CATEGORY_ID(tags, 64)", {"kind": "sequence", "column": "tags", "buckets": 64}),
        ("INDICATOR(BUCKET(age, [10, 20.5]))",
         {"kind": "indicator",
          "of": {"kind": "bucket", "of": {"kind": "number", "column": "age"},
                 "boundaries": [10, 20.5]}}),
        ("EMBEDDING(CROSS([role, CATEGORY_HASH(city, 9)], 50), 8, sum)",
         {"kind": "embedding", "dimension": 8, "combiner": "sum",
          "of": {"kind": "cross", "buckets": 50,
                 "of": [{"kind": "category", "column": "role", "derive": {}},
                        {"kind": "category", "column": "city", "buckets": 9}]}}),
    ],
)  # fmt: skip
def test_each_column_function_becomes_a_feature(clause, feature) -> None:
    assert features(clause) == [feature]


@pytest.mark.parametrize(
    ("clause", "problem"),
    [
        ("agee", "did you mean 'age'?"),
        ("EMBEDING(role, 8)", "did you mean 'EMBEDDING'?"),
        ("EMBEDDING(role)", "takes 2 to 3 arguments"),
        ("CATEGORY_HASH(role, 0)", "at least 1"),
        ("BUCKET(age, [20, 10])", "increasing numbers"),
        ("CROSS(role, 10)", "list in brackets"),
        ("EMBEDDING(role, 8, max)", "mean, sum, sqrtn"),
        ("3", "Expected a column"),
    ],
)
def test_invalid_column_functions_are_refused(clause, problem) -> None:
    with pytest.raises(StatementError, match=problem):
        features(clause)
