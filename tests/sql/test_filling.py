"""The seed's two statements on every database, and how PREDICT finds its rows and columns."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elasticdl.errors import UsageError
from elasticdl.sql.database_interface import open_database
from elasticdl.sql.models import ModelRecord
from elasticdl.sql.prediction import PredictRequest, plan

SEED = """
SELECT name, role, salary FROM employee
TRAIN regressor.DNN
WITH hidden_units=[10, 100, 20, 5], learning_rate=0.01
INTO my_trained_model;

SELECT name, role FROM testdata
PREDICT testdata.predicted_salary
USING my_trained_model;
"""
REGRESSOR = ModelRecord("", "", details={"params": {"label_mean": 1.0, "label_scale": 1.0}})
CLASSIFIER = ModelRecord("", "", details={"params": {"classes": ["a", "b"]}})


def run(url: str, *statements: str) -> list[tuple]:
    rows: list[tuple] = []
    with open_database(url) as database:
        for statement in statements:
            with database.run(statement) as found:
                batches = () if found is None else found.batches
                rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return rows


def request(select: str, target: str = "t.v", **more) -> PredictRequest:
    table, _, column = target.rpartition(".")
    return PredictRequest(select, table, column, "m", **more)


def planned(url: str, select: str, target: str = "t.v", record=None, **more):
    with open_database(url) as database:
        return plan(request(select, target, **more), database, record)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        # They fill the column of the same statements in `test_seed.py`, each from a door.
        *[
            pytest.param(kind, marks=pytest.mark.exhaustive)
            for kind in ("duckdb", "postgresql", "mariadb")
        ],
    ],
)
def test_the_two_statements_of_the_seed_fill_the_column_on_every_database(
    kind, request, tmp_path
) -> None:
    url = f"{kind}:///{tmp_path}/shop.db"
    if kind in {"postgresql", "mariadb"}:
        url = request.getfixturevalue(kind).url
    people = [(i, f"n{i}", ("clerk", "boss", "chef")[i % 3]) for i in range(200)]
    salaries = ", ".join(f"('{n}', '{r}', {1000 * (i % 3) + i})" for i, n, r in people)
    wanted = ", ".join(f"({i}, '{n}', '{r}')" for i, n, r in people[:30])
    run(
        url,
        "DROP TABLE IF EXISTS employee",
        "DROP TABLE IF EXISTS testdata",
        "CREATE TABLE employee (name VARCHAR(20), role VARCHAR(20), salary DECIMAL(10,2))",
        f"INSERT INTO employee VALUES {salaries}",
        "CREATE TABLE testdata (id INTEGER PRIMARY KEY, name VARCHAR(20), role VARCHAR(20), "
        "predicted_salary DOUBLE PRECISION)",
        f"INSERT INTO testdata(id, name, role) VALUES {wanted}",
    )
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "sql", SEED, f"--database={url}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout + done.stderr
    assert run(url, "SELECT id, name, role FROM testdata ORDER BY id") == people[:30]
    for number, _, role, salary in run(url, "SELECT * FROM testdata ORDER BY id"):
        assert number < 30
        base = {"clerk": 0, "boss": 1000, "chef": 2000}[role]
        assert salary == pytest.approx(base + 100, abs=250)


@pytest.fixture
def url(tmp_path) -> str:
    there = f"duckdb:///{tmp_path}/test.db"
    run(
        there,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, v DOUBLE, word VARCHAR, whole INTEGER, "
        "money DECIMAL(10,2), twice DOUBLE GENERATED ALWAYS AS (2 * a) VIRTUAL)",
        "INSERT INTO t (id, a) VALUES (1, 1)",
        "CREATE SCHEMA other",
        "CREATE TABLE other.t (id INTEGER, a INTEGER)",
    )
    return there


def test_the_key_is_read_with_the_rows(url) -> None:
    how = planned(url, "SELECT a FROM main.t AS x WHERE a IS DISTINCT FROM 5")

    assert list(how.key) == ["id"]
    assert run(url, how.select) == [(1, 1)]
    how = planned(url, "SELECT a IS DISTINCT FROM 5 AS b FROM t")
    assert run(url, how.select) == [(True, 1)]


def test_a_table_of_another_schema_is_distinguished(url) -> None:
    with pytest.raises(UsageError, match="t does not match these rows"):
        planned(url, "SELECT a FROM other.t")
    assert list(planned(url, "SELECT a FROM other.t", "other.t.v").key) == ["rowid"]
    assert list(planned(url, "SELECT a FROM main.t").key) == ["id"]


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("WITH t AS (SELECT 5 AS id, 6 AS a) SELECT a FROM t", "more than the table t"),
        ("SELECT id FROM t AS x(a, id)", "other names"),
        ("SELECT a FROM t, LATERAL (SELECT 1 AS z)", "more than the table t"),
        ("SELECT a FROM (SELECT * FROM t)", "more than the table t"),
        ("SELECT DISTINCT a FROM t", "DISTINCT"),
    ],
)
def test_rows_that_do_not_match_the_table_are_refused(url, select, reason) -> None:
    with pytest.raises(UsageError, match=reason):
        planned(url, select)


@pytest.mark.parametrize(
    ("column", "record", "reason"),
    [
        ("word", REGRESSOR, "word is VARCHAR, but the values are numbers"),
        ("whole", REGRESSOR, "the fractions of the values would be lost"),
        ("v", CLASSIFIER, "v is DOUBLE, but the values are text"),
        ("id", REGRESSOR, "part of its key"),
        ("twice", REGRESSOR, "the column twice is generated"),
        ("ID", CLASSIFIER, "the values are texts|part of its key"),
    ],
)
def test_an_unsuitable_column_is_refused_before_predicting(url, column, record, reason) -> None:
    with pytest.raises(UsageError, match=reason):
        planned(url, "SELECT a FROM t", f"t.{column}", record)


def test_a_column_that_rounds_is_noted(url) -> None:
    assert (
        "DECIMAL(10,2): the database rounds"
        in planned(url, "SELECT a FROM t", "t.money", REGRESSOR).note
    )
    assert not planned(url, "SELECT a FROM t", "t.v", REGRESSOR).note
    assert not planned(url, "SELECT a FROM t", "t.missing", REGRESSOR).note


def test_the_probability_column_must_be_suitable_too(url) -> None:
    with pytest.raises(UsageError, match="whole is INTEGER"):
        planned(url, "SELECT a FROM t", "t.word", CLASSIFIER, probability="whole")


def test_unquoted_upper_case_is_lower_case_in_postgresql(postgresql) -> None:
    run(
        postgresql.url,
        "DROP TABLE IF EXISTS people",
        'DROP TABLE IF EXISTS "People"',
        "CREATE TABLE people (id INTEGER PRIMARY KEY, a INTEGER, v FLOAT8)",
        "INSERT INTO people VALUES (1, 2, NULL)",
    )
    how = planned(postgresql.url, "SELECT A FROM People P", "People.V")
    assert run(postgresql.url, how.select) == [(2, 1)]
    # With quotes it is another one, once there is one.
    run(postgresql.url, 'CREATE TABLE "People" ("Id" INTEGER PRIMARY KEY, v FLOAT8)')
    how = planned(postgresql.url, 'SELECT v FROM "People" AS "P"', "People.v")
    assert list(how.key) == ["Id"]


def test_a_table_may_have_a_schema_in_postgresql(postgresql) -> None:
    run(
        postgresql.url,
        "DROP SCHEMA IF EXISTS sales CASCADE",
        "DROP TABLE IF EXISTS t CASCADE",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.t (id INTEGER PRIMARY KEY, v FLOAT8)",
    )
    with open_database(postgresql.url) as database:
        assert list(plan(request("SELECT v FROM sales.t", "sales.t.v"), database).key) == ["id"]
        assert "sales.t" in database.tables()
        assert database.table("sales.t").name == "sales.t"
        assert database.table("t") is None
