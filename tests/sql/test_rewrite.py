"""A SELECT gets the key of its table, or a reason why not."""

from __future__ import annotations

import pytest

from elasticdl.sql.rewrite import is_same_table, sources_of, tables_of, with_key


def keyed(select: str, table: str = "t") -> tuple[str, str]:
    return with_key(select, "duckdb", table, ["id"], lambda name: f'"{name}"')


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("SELECT a FROM t", 'SELECT a, t."id" AS elasticdl_key_0 FROM t'),
        ("SELECT a FROM t AS x WHERE a > (SELECT 1 FROM u)",
         'SELECT a, x."id" AS elasticdl_key_0 FROM t AS x WHERE a > (SELECT 1 FROM u)'),
        ("SELECT (SELECT max(b) FROM u) m, a -- all\nFROM main.t",
         'SELECT (SELECT max(b) FROM u) m, a, t."id" AS elasticdl_key_0 -- all\nFROM main.t'),
        ("SELECT *, rank() OVER (ORDER BY a) r FROM t",
         'SELECT *, rank() OVER (ORDER BY a) r, t."id" AS elasticdl_key_0 FROM t'),
        ("WITH u AS (SELECT 1 x) SELECT a FROM t",
         'WITH u AS (SELECT 1 x) SELECT a, t."id" AS elasticdl_key_0 FROM t'),
    ],
)  # fmt: skip
def test_the_key_follows_the_selected_columns(select, expected) -> None:
    assert keyed(select) == (expected, "")


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("SELECT DISTINCT a FROM t", "DISTINCT"),
        ("SELECT a FROM t GROUP BY a", "GROUP"),
        ("SELECT count(*) FROM t", "aggregates"),
        ("SELECT a FROM t UNION SELECT a FROM t", "set operation"),
        ("SELECT a FROM t JOIN u ON t.id = u.id", "more than t"),
        ("SELECT a FROM t, u", "more than t"),
        ("SELECT a FROM (SELECT a FROM t)", "more than t"),
        ("SELECT FROM WHERE", "cannot be read"),
    ],
)
def test_rows_must_be_rows_of_the_table(select, reason) -> None:
    text, why_not = keyed(select)

    assert text == ""
    assert reason in why_not


def test_tables_are_found_without_common_table_expressions() -> None:
    select = "WITH c AS (SELECT * FROM a) SELECT * FROM c JOIN s.b ON EXISTS (SELECT 1 FROM d)"

    assert sorted(tables_of(select, "duckdb")) == [("a",), ("d",), ("s", "b")]


@pytest.mark.parametrize(
    ("select", "sources"),
    [
        ("SELECT a, (SELECT max(b) FROM v) AS b FROM t", ["t"]),
        ("SELECT a, (SELECT max(b) FROM v), b - (SELECT min(b) FROM v) FROM t", ["t"]),
        ("SELECT a, a IN (SELECT a FROM v) AS old FROM t ORDER BY (SELECT max(b) FROM v)", ["t"]),
        ("SELECT a, (SELECT max(b) FROM (SELECT b FROM v) AS s) AS b FROM t", ["t"]),
        ("SELECT a FROM (SELECT a FROM v) AS s", ["v"]),
        ("SELECT a FROM t UNION ALL (SELECT a FROM v)", ["t", "v"]),
        ("WITH c AS (SELECT a FROM v) SELECT a FROM c", ["v"]),
        ("SELECT unnest((SELECT array_agg(a) FROM v)) AS a FROM t", ["t", "v"]),
    ],
)
def test_a_subquery_that_is_one_value_provides_no_rows(select, sources) -> None:
    found = [name for (name,) in sources_of(select, "postgres")]

    assert sorted(found) == sources


def test_the_schema_of_a_table_may_be_omitted() -> None:
    assert is_same_table("T", "main.t")
    assert not is_same_table("a.t", "b.t")
    assert not is_same_table("data", "testdata")
