"""Where predictions and metrics go: to the table that was named, and to no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.errors import DataError, ElasticDLError, UsageError
from elasticdl.sql.check import predict_request
from elasticdl.sql.database_interface import Database, open_database
from elasticdl.sql.evaluation import check_into
from elasticdl.sql.execute import SqlSession, execute
from elasticdl.sql.models import Models
from elasticdl.sql.names import shown, typed
from elasticdl.sql.parse import parse
from elasticdl.sql.prediction import predict
from elasticdl.sql.statements import StatementError

SHORT = "hidden_units=[4], train.num_epochs=1"
KINDS = ["duckdb", "sqlite", "postgresql", "mariadb"]


def run(program: str, models: Path) -> list[list[dict]]:
    return [
        [row for batch in result.rows.batches for row in batch.to_pylist()] if result.rows else []
        for result in execute(program, SqlSession("duckdb://", str(models)))
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Return a folder with a regressor `lin` of y and a classifier `cls` of k, on a and b."""
    folder = tmp_path_factory.mktemp("models")
    run(
        "CREATE TABLE t AS SELECT i % 5 AS a, i % 7 AS b, 2.0 * (i % 5) AS y, "
        "['u', 'v'][1 + i % 2] AS k FROM range(40) rows(i);"
        f"SELECT a, b, y FROM t TO TRAIN regressor.DNN WITH {SHORT} INTO lin;"
        f"SELECT a, b, k FROM t TO TRAIN classifier.DNN WITH {SHORT} INTO cls;",
        folder,
    )
    return folder


def rows_of(database: Database, select: str) -> list[tuple]:
    with database.read(select) as rows:
        return [tuple(row.values()) for batch in rows.batches for row in batch.to_pylist()]


def do(database: Database, *statements: str) -> None:
    for statement in statements:
        with database.run(statement):
            pass


def predicted(database: Database, program: str, models: Path) -> list[dict]:
    (statement,) = parse(program, database.dialect)
    trained = Models(str(models))
    asked = predict_request(statement, program, database, trained)
    return predict(asked, database, trained).to_pylist()


@pytest.fixture(params=KINDS)
def database(request, tmp_path):
    """Return a database with table t, and tables b in schema a and "a.b" where there are schemas.

    SQLite has none, so there it is another file.
    """
    kind = request.param
    url = f"{kind}://"
    if kind in {"postgresql", "mariadb"}:
        url = request.getfixturevalue(kind).url
    with open_database(url) as there:
        dotted = there.quote(("a.b",))
        a_b = there.quote(("a", "b"))
        if kind == "sqlite":
            do(there, f"ATTACH '{tmp_path}/a.sqlite' AS a")
        elif kind == "mariadb":
            do(there, "DROP DATABASE IF EXISTS a", "CREATE DATABASE a")
        else:
            do(there, "DROP SCHEMA IF EXISTS a CASCADE", "CREATE SCHEMA a")
        for view in ("v", "vv"):
            do(there, f"DROP VIEW IF EXISTS {view}")
        for table in (a_b, dotted, "t", "u"):
            do(there, f"DROP TABLE IF EXISTS {table}")
        for table in (a_b, dotted, "t"):
            do(
                there,
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER)",
                f"INSERT INTO {table} VALUES (1, 1, 2), (2, 3, 4), (3, 0, 6)",
            )
        yield there


def test_a_dot_in_quotes_is_part_of_the_name(database, models) -> None:
    program = 'SELECT a, b FROM "a.b" WHERE id < 3 TO PREDICT "a.b"."p.q" USING lin'
    if database.dialect == "mysql":
        program = program.replace('"', "`")
    [row] = predicted(database, program, models)

    assert row == {"table": '"a.b"', "column": "p.q", "rows": 2}
    assert list(database.table(("a", "b")).columns) == ["id", "a", "b"]
    assert list(database.table(("a.b",)).columns) == ["id", "a", "b", "p.q"]
    # Without quotes it is the other one.
    [row] = predicted(database, "SELECT a, b FROM a.b TO PREDICT a.b.p USING lin", models)

    assert row == {"table": "a.b", "column": "p", "rows": 3}
    assert list(database.table(("a.b",)).columns) == ["id", "a", "b", "p.q"]
    assert "p" in database.table(("a", "b")).columns


def test_a_new_table_may_have_a_dot_in_its_name(database, models) -> None:
    quoted = database.quote(("new.one",))
    do(database, f"DROP TABLE IF EXISTS {quoted}")
    [row] = predicted(database, f"SELECT a, b FROM t TO PREDICT {quoted}.p USING lin", models)

    assert row == {"table": '"new.one"', "column": "p", "rows": 3}
    assert rows_of(database, f"SELECT count(p) FROM {quoted}") == [(3,)]
    do(database, f"DROP TABLE {quoted}")


def test_a_quoted_name_is_not_split_into_a_table_and_a_column() -> None:
    with pytest.raises(StatementError, match=r'write "TABLE"\."COLUMN"'):
        parse('SELECT 1 TO PREDICT "t.p" USING m')


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("t",)),
        ("s.t", ("s", "t")),
        ('"s.t"', ("s.t",)),
        ('s."a""b.c"', ("s", 'a"b.c')),
        ("`a.b`.c", ("a.b", "c")),
    ],
)
def test_names_with_dots_are_typed_in_quotes(text, parts) -> None:
    assert typed(text) == parts
    assert shown(("s", "a.b")) == 's."a.b"'


def test_rows_are_not_appended_through_a_view(database, models) -> None:
    do(
        database,
        "ALTER TABLE t ADD COLUMN p FLOAT",
        "CREATE VIEW v AS SELECT id, a, b FROM t",
        "CREATE VIEW vv AS SELECT v.* FROM v",
    )
    for view in ("v", "vv"):
        with pytest.raises(StatementError, match=f"through the view {view}"):
            predicted(database, f"SELECT id, a, b FROM {view} TO PREDICT t.p USING lin", models)
    with pytest.raises(StatementError, match="v is a view"):
        predicted(database, "SELECT id, a, b FROM t AS x TO PREDICT v.p USING lin", models)

    assert rows_of(database, "SELECT count(*) FROM t") == [(3,)]
    # Its rows go elsewhere, and it may say which ones are new.
    do(database, "CREATE TABLE u (id INTEGER, a INTEGER, b INTEGER, p FLOAT)")
    do(
        database,
        "DROP VIEW vv",
        "CREATE VIEW vv AS SELECT id, a, b FROM t WHERE id NOT IN (SELECT id FROM u)",
    )
    for count in (3, 0):
        program = "SELECT id, a, b FROM vv TO PREDICT u.p USING lin"
        assert predicted(database, program, models)[0]["rows"] == count
    # One value of the view is not a row of it.
    selected = "id + 10 AS id, a, (SELECT max(b) FROM v) AS b"
    program = f"SELECT {selected} FROM u TO PREDICT t.p USING lin"
    assert predicted(database, program, models)[0]["rows"] == 3


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("employee.p", "its columns 'id', 'y' would be NULL in each appended row"),
        ("results.q", "has no column 'q'; it has a, b, p"),
        ("new.b", "two columns b: the SELECT has one already"),
        ("nowhere.new.p", "has no schema 'nowhere', so the table nowhere.new cannot be created"),
    ],
)
def test_an_unrelated_table_is_refused_for_predictions(target, problem, models) -> None:
    tables = (
        "CREATE TABLE employee AS SELECT i AS id, 1 AS a, 2 AS b, 3.0 AS y, 4.0 AS p FROM "
        "range(3) rows(i); CREATE TABLE results AS SELECT a, b, p FROM employee;"
    )
    with pytest.raises(ElasticDLError, match=problem) as caught:
        run(f"{tables}SELECT 1 AS a, 2 AS b TO PREDICT {target} USING lin", models)

    assert isinstance(caught.value, StatementError)
    *_, rows = run(
        f"{tables}SELECT 1 AS a, 2 AS b TO PREDICT results.p USING lin;"
        "SELECT count(*) AS n, count(p) AS p FROM results",
        models,
    )
    assert rows == [{"n": 4, "p": 4}]


def test_a_missing_schema_is_reported_before_anything_is_computed(database, models) -> None:
    select = "SELECT id, a, b FROM t"
    with pytest.raises(StatementError, match="has no schema 'nowhere'"):
        predicted(database, f"{select} TO PREDICT nowhere.new.p USING lin", models)
    with pytest.raises(UsageError, match="has no schema 'nowhere'"):
        check_into(("nowhere", "new"), ["metric"], database)

    do(database, f"DROP TABLE IF EXISTS {database.quote(('a', 'new'))}")
    [row] = predicted(database, f"{select} TO PREDICT a.new.p USING lin", models)
    assert row == {"table": "a.new", "column": "p", "rows": 3}


def test_metrics_are_stored_with_model_version_and_time(models) -> None:
    rows = "SELECT 1 AS a, 2 AS b, 3.0 AS y"
    *_, found = run(
        f"CREATE TABLE old (metric VARCHAR, value DOUBLE); {rows} TO EVALUATE lin INTO metrics;"
        f'{rows} TO EVALUATE lin INTO metrics; {rows} TO EVALUATE lin INTO "old";'
        f'{rows} TO EXPLAIN lin INTO "what.for"; SELECT count(DISTINCT m.time) AS times, '
        "min(m.model) AS model, min(m.version) AS version, (SELECT count(*) FROM old) * 2 = "
        'count(*) AS same, (SELECT min(model) FROM "what.for") AS explained FROM metrics m',
        models,
    )

    assert found == [{"times": 2, "model": "lin", "version": 1, "same": True, "explained": "lin"}]


@pytest.mark.parametrize("verb", ["EVALUATE", "EXPLAIN"])
def test_an_unrelated_table_is_refused_for_metrics(verb, models) -> None:
    program = (
        "CREATE TABLE t AS SELECT 'loss' AS metric, 1.0 AS value, 'x' AS \"column\", 1.0 AS "
        "importance, 1.0 AS deviation, 5 AS more; SELECT 1 AS a, 2 AS b, 3.0 AS y "
        f"TO {verb} lin INTO t"
    )
    with pytest.raises(StatementError, match="'more' would be NULL"):
        run(program, models)


@pytest.mark.parametrize("verb", ["EVALUATE", "EXPLAIN"])
@pytest.mark.parametrize(("model", "label"), [("lin", "y"), ("cls", "k")])
def test_rows_without_a_label_are_omitted_and_counted(verb, model, label, models, capfd) -> None:
    value = {"y": "(2.0 * i)::DOUBLE", "k": "['u', 'v'][1 + i % 2]"}[label]
    table = (
        f"CREATE TABLE t AS SELECT i % 5 AS a, i % 7 AS b, CASE WHEN i % 4 > 0 THEN {value} END "
        f"AS {label} FROM range(40) rows(i);"
    )
    _, found = run(f"{table} SELECT * FROM t TO {verb} {model};", models)

    assert "10 rows without a" in capfd.readouterr().err
    _, plain = run(f"{table} SELECT * FROM t WHERE {label} IS NOT NULL TO {verb} {model}", models)
    assert found == plain
    with pytest.raises(DataError, match=rf"'{label}'.* no value in any of the 10 rows"):
        run(f"{table} SELECT * FROM t WHERE {label} IS NULL TO {verb} {model}", models)


def test_the_probability_column_is_named_in_the_result(models, capfd) -> None:
    table = "CREATE TABLE t AS SELECT i % 5 AS a, i % 7 AS b FROM range(40) rows(i);"
    _, rows = run(
        f"{table} SELECT a, b FROM t TO PREDICT t.p WITH predict.probability=prob USING cls", models
    )

    assert rows == [{"table": "t", "column": name, "rows": 40} for name in ("p", "prob")]
    assert "t.p and prob: 40 rows filled" in capfd.readouterr().err
    with pytest.raises(StatementError, match="cannot both be written to the column p"):
        run(
            f"{table} SELECT a, b FROM t TO PREDICT t.p WITH predict.probability=p USING cls",
            models,
        )


def test_equal_rows_are_held_out_together_or_not_at_all(tmp_path, capfd) -> None:
    train = f"TO TRAIN regressor.DNN WITH {SHORT}, validation.fraction={{}} INTO m"
    rows = "SELECT 3 + i % 2 AS a, 5 + i % 2 AS y FROM range(40) rows(i) "
    with pytest.raises(DataError, match="All 40 rows are held out for validation"):
        run(rows + train.format(0.999), tmp_path)
    run(rows + train.format(0.001), tmp_path)

    assert "No row is held out for validation" in capfd.readouterr().err
