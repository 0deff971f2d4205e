"""The laws of `sql/database_interface.py`, held by embedded databases and real servers."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from elasticdl.errors import UnavailableError, UsageError
from elasticdl.sql.database_interface import DatabaseError, RowSource, open_database
from elasticdl.sql.databases import duckdb
from elasticdl.sql.rewrite import with_key

KINDS = ["duckdb", "duckdb in memory", "sqlite", "sqlite in memory", "sqlalchemy",
         "postgresql", "mariadb"]  # fmt: skip
_NUMBERS = itertools.count()
_OFFSET = dt.timezone(dt.timedelta(hours=2))


@dataclass
class Place:
    """A database of a test's own."""

    kind: str
    url: str
    database: Any

    @property
    def mark(self) -> str:
        return "`" if self.kind == "mariadb" else '"'

    def run(self, *statements: str) -> None:
        for statement in statements:
            with self.database.run(statement):
                pass

    def rows(self, select: str) -> list[tuple]:
        with self.database.read(select) as rows:
            return [tuple(row.values()) for b in rows.batches for row in b.to_pylist()]

    def types(self, select: str) -> list[str]:
        with self.database.read(select) as rows:
            return [str(type_) for type_ in rows.schema.types]


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    number = next(_NUMBERS)
    urls = {
        "duckdb": f"duckdb:///{tmp_path}/test.db",
        "duckdb in memory": "duckdb://",
        "sqlite": f"sqlite:///{tmp_path}/test.db",
        "sqlite in memory": "sqlite://",
        "sqlalchemy": f"sqlite+pysqlite:///{tmp_path}/test.db",
    }
    if request.param in {"postgresql", "mariadb"}:
        server = request.getfixturevalue(request.param)
        server.query(f"CREATE DATABASE place{number}")
        url = server.url.removesuffix("/test") + f"/place{number}"
    else:
        url = urls[request.param]
    with open_database(url) as database:
        yield Place(request.param, url, database)


def given(key: list, **values: Any) -> RowSource:
    batch = pa.record_batch(
        {"elasticdl_key_0": pa.array(key)}
        | {name: column if isinstance(column, pa.Array) else pa.array(column)
           for name, column in values.items()}
    )  # fmt: skip
    return RowSource(batch.schema, [batch])


def people(place: Place) -> None:
    place.run(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR(20), score DOUBLE PRECISION)",
        "INSERT INTO people VALUES (1, 'ann', NULL), (2, 'bob', 0.5), (3, NULL, NULL)",
    )


def test_rows_are_read_in_batches(place) -> None:
    people(place)
    with place.database.read("SELECT * FROM people ORDER BY id") as rows:
        table = pa.Table.from_batches(rows.batches, rows.schema)

    assert table.to_pydict() == {
        "id": [1, 2, 3], "name": ["ann", "bob", None], "score": [None, 0.5, None],
    }  # fmt: skip
    assert [str(t) for t in rows.schema.types[1:]] == ["string", "double"]
    assert place.database.schema("SELECT id, name FROM people").names == ["id", "name"]
    assert "people" in place.database.tables()


def test_filling_a_column_by_key_keeps_other_columns(place) -> None:
    people(place)
    before = place.rows("SELECT id, name FROM people ORDER BY id")
    key = place.database.table("people").key

    assert list(key) == ["id"]
    assert place.database.fill("people", key, given([3, 1], score=[3.25, 1.125])) == 2
    assert place.rows("SELECT id, score FROM people ORDER BY id") == [
        (1, 1.125),
        (2, 0.5),
        (3, 3.25),
    ]
    assert place.rows("SELECT id, name FROM people ORDER BY id") == before


def test_a_missing_column_is_added_with_the_type_of_the_values(place) -> None:
    people(place)
    place.database.fill("people", ["id"], given([1, 2], kind=["a", "b"], sure=[0.5, 0.25]))

    assert place.rows("SELECT id, kind, sure FROM people ORDER BY id") == [
        (1, "a", 0.5), (2, "b", 0.25), (3, None, None),
    ]  # fmt: skip


def test_a_refused_value_is_reported_without_our_update_statement(place) -> None:
    place.run(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, score DOUBLE PRECISION CHECK (score < 5), "
        "n DECIMAL(4,2))",
        "INSERT INTO people VALUES (1, 1, 1)",
    )
    for column in ("score", "n"):
        if "sql" in place.kind and place.kind not in {"postgresql", "mariadb"} and column == "n":
            continue  # SQLite takes it
        with pytest.raises(DatabaseError) as caught:
            place.database.fill("people", ["id"], given([1], **{column: [1234.5]}))
        said = str(caught.value)
        assert f"people cannot be filled ({column}): " in said
        assert "elasticdl_" not in said
        assert "UPDATE" not in said
        assert "Failed to" not in said


def test_a_generated_column_is_not_filled(place) -> None:
    kind = "VIRTUAL" if place.kind.startswith("duckdb") else "STORED"
    place.run(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, score DOUBLE PRECISION, "
        f"twice DOUBLE PRECISION GENERATED ALWAYS AS (2 * score) {kind})",
        "INSERT INTO people (id, score) VALUES (1, 1)",
    )
    assert list(place.database.table("people").generated) == ["twice"]
    with pytest.raises(DatabaseError, match="the column twice is generated"):
        place.database.fill("people", ["id"], given([1], twice=[4.0]))
    assert place.database.fill("people", ["id"], given([1], score=[4.0])) == 1
    assert place.rows("SELECT score, twice FROM people") == [(4.0, 8.0)]


def test_deleted_rows_are_not_counted(place) -> None:
    people(place)

    assert place.database.fill("people", ["id"], given([1, 99], score=[1.0, 2.0])) == 1
    assert place.rows("SELECT count(*) FROM people") == [(3,)]


def test_a_duplicate_key_is_refused(place) -> None:
    people(place)
    with pytest.raises(DatabaseError, match="key 1 more than once"):
        place.database.fill("people", ["id"], given([1, 2, 1], score=[1.0, 2.0, 3.0]))

    assert place.rows("SELECT id, score FROM people ORDER BY id") == [
        (1, None),
        (2, 0.5),
        (3, None),
    ]


@pytest.mark.parametrize(
    ("batches", "num_updates"),
    [
        ([[1, 2], [3, 5], [8, 9]], 3),
        ([[1], [2], [3, 5]], 2),
        ([[1, 2], [3, 5], [9, 8]], 1),
        ([[3, 5], [1, 2], [8, 9]], 1),
        ([[-3, 1], [9]], 2),
    ],
)
def test_duckdb_is_filled_in_parts_if_keys_are_ascending(
    tmp_path, monkeypatch, batches, num_updates
) -> None:
    monkeypatch.setattr(duckdb, "_PART_ROWS", 2)
    updates = []
    run = duckdb._Transaction.run

    def counted(transaction, statement):
        updates.extend([statement] if statement.startswith("UPDATE") else [])
        return run(transaction, statement)

    monkeypatch.setattr(duckdb._Transaction, "run", counted)
    with open_database(f"duckdb:///{tmp_path}/t.db") as database:
        place = Place("duckdb", "", database)
        place.run("CREATE TABLE t AS SELECT i AS id, 0 AS p FROM range(-5, 9) r(i)")
        place.run("ALTER TABLE t ADD PRIMARY KEY (id)")
        made = [given(keys, p=[10 * key for key in keys]) for keys in batches]
        rows = RowSource(made[0].schema, [batch for each in made for batch in each.batches])
        changed = database.fill("t", ["id"], rows)

        keys = {key for keys in batches for key in keys if key != 9}
        expected = [(i, 10 * i if i in keys else 0) for i in range(-5, 9)]
        assert place.rows("SELECT id, p FROM t ORDER BY id") == expected
    assert changed == len(keys)
    assert len(updates) == num_updates


def test_a_failure_while_filling_keeps_the_table_and_its_columns(place) -> None:
    people(place)
    rows = given([1, 2], score=[1.0, 2.0], extra=[1.0, 2.0])

    def broken():
        yield from rows.batches
        raise KeyError("broken")

    with pytest.raises(Exception, match="broken"):
        place.database.fill("people", ["id"], RowSource(rows.schema, broken()))

    assert place.rows("SELECT id, score FROM people ORDER BY id") == [
        (1, None),
        (2, 0.5),
        (3, None),
    ]
    if place.kind != "sqlalchemy":  # whose driver of SQLite commits DDL by itself
        assert list(place.database.table("people").columns) == ["id", "name", "score"]
    # The connection is as good as before.
    assert place.database.fill("people", ["id"], given([1], score=[1.0])) == 1


def test_a_refused_value_changes_nothing(place) -> None:
    place.run(
        "CREATE TABLE small (id INTEGER PRIMARY KEY, v DOUBLE PRECISION CHECK (v < 10))",
        "INSERT INTO small VALUES (1, 1), (2, 2)",
    )
    with pytest.raises(DatabaseError, match="(?i)constraint|check"):
        place.database.fill("small", ["id"], given([1, 2], extra=["a", "b"], v=[5.0, 50.0]))

    assert place.rows("SELECT id, v FROM small ORDER BY id") == [(1, 1.0), (2, 2.0)]
    if place.kind != "sqlalchemy":
        assert list(place.database.table("small").columns) == ["id", "v"]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        ("VARCHAR(10)", [1.5], "the values are numbers"),
        ("VARCHAR(10)", [1], "the values are integers"),
        ("DOUBLE PRECISION", ["a"], "the values are text"),
        ("INTEGER", [1.5], "the fractions of the values would be lost"),
        ("DATE", [1.5], "the values are numbers"),
    ],
)
def test_values_of_another_type_are_refused(place, type_, values, expected) -> None:
    place.run(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {type_})", "INSERT INTO t(id) VALUES (1)")
    with pytest.raises(DatabaseError, match=expected):
        place.database.fill("t", ["id"], given([1], v=values))

    assert place.rows("SELECT v FROM t") == [(None,)]


def test_the_key_itself_cannot_be_filled(place) -> None:
    people(place)
    with pytest.raises(DatabaseError, match="part of the key"):
        place.database.fill("people", ["id"], given([1], id=[7]))


def test_a_key_may_have_several_columns(place) -> None:
    place.run(
        "CREATE TABLE sales (shop VARCHAR(10), day INTEGER, v DOUBLE PRECISION, "
        "PRIMARY KEY (shop, day))" if "sqlite" not in place.url else
        "CREATE TABLE sales (shop VARCHAR(10) NOT NULL, day INTEGER NOT NULL, v DOUBLE, "
        "PRIMARY KEY (shop, day))",
        "INSERT INTO sales(shop, day) VALUES ('a', 1), ('a', 2), ('b', 1)",
    )  # fmt: skip
    key = place.database.table("sales").key
    batch = pa.record_batch({"k": ["a", "b"], "l": [2, 1], "v": [12.0, 21.0]})

    assert list(key) == ["shop", "day"]
    assert place.database.fill("sales", key, RowSource(batch.schema, [batch])) == 2
    assert place.rows("SELECT shop, day, v FROM sales ORDER BY shop, day") == [
        ("a", 1, None), ("a", 2, 12.0), ("b", 1, 21.0),
    ]  # fmt: skip


def test_a_unique_constraint_serves_as_key(place) -> None:
    place.run("CREATE TABLE t (code VARCHAR(10) NOT NULL, v DOUBLE PRECISION, UNIQUE (code))",
              "INSERT INTO t VALUES ('x', 1), ('y', 2)")  # fmt: skip

    assert list(place.database.table("t").key) == ["code"]
    assert place.database.fill("t", ["code"], given(["y"], v=[5.0])) == 1


def test_a_table_without_a_key_says_what_to_do(place) -> None:
    place.run(
        "CREATE TABLE t (a INTEGER UNIQUE, v DOUBLE PRECISION)", "CREATE VIEW w AS SELECT a FROM t"
    )
    info = place.database.table("t")
    view = place.database.table("w")

    if place.kind.startswith(("duckdb", "sqlite")):
        assert list(info.key) == ["rowid"]
    else:
        assert not info.key
        assert "ALTER TABLE t ADD" in info.why_no_key
    assert not view.key
    assert view.why_no_key
    assert place.database.table("nothing") is None
    assert place.database.table("nothing.t") is None


ODD = [
    "select",
    'a"b',
    "a`b",
    "it's",
    "Upper Case",
    "ä€",
    "; DROP TABLE keep; --",
    "100%",
    "a%(x)s",
    ":b",
]


@pytest.mark.parametrize("odd", ODD)
def test_names_are_never_executed_as_sql(place, odd) -> None:
    def quote(name: str) -> str:
        return place.mark + name.replace(place.mark, place.mark * 2) + place.mark

    place.run(
        "CREATE TABLE keep (a INTEGER)",
        f"CREATE TABLE {quote(odd)} ({quote(odd)} INTEGER PRIMARY KEY, v DOUBLE PRECISION)",
        f"INSERT INTO {quote(odd)} VALUES (1, NULL)",
    )
    info = place.database.table(odd)
    batch = pa.record_batch({"k": [1], "new " + odd: [2.5], "v": [1.5]})

    assert list(info.key) == [odd]
    assert place.database.quote(odd) == quote(odd)
    assert place.database.fill(odd, info.key, RowSource(batch.schema, [batch])) == 1
    assert place.rows(f"SELECT {quote(odd)}, {quote('new ' + odd)}, v FROM {quote(odd)}") == [
        (1, 2.5, 1.5)
    ]
    assert odd in place.database.tables()
    result = pa.record_batch({odd: ["x"]})
    assert place.database.append(odd + "_result", RowSource(result.schema, [result])) == 1
    assert place.rows(f"SELECT {quote(odd)} FROM {quote(odd + '_result')}") == [("x",)]
    assert place.rows("SELECT * FROM keep") == []


def test_values_are_never_executed_as_sql(place) -> None:
    place.run("CREATE TABLE t (id VARCHAR(60) NOT NULL PRIMARY KEY, v VARCHAR(60))")
    words = [*ODD, "'; DELETE FROM t; --", "\\'; --", "\\", "\\N", "NULL", "\t\n", "%s"]
    batch = pa.record_batch({"id": words})
    place.database.append("t", RowSource(batch.schema, [batch]))

    assert place.database.fill("t", ["id"], given(words, v=words)) == len(words)
    assert sorted(place.rows("SELECT id, v FROM t")) == sorted((w, w) for w in words)


def test_names_are_case_insensitive(place) -> None:
    people(place)

    assert place.database.fill("People", ["id"], given([1], SCORE=[9.0])) == 1
    assert place.rows("SELECT score FROM people WHERE id = 1") == [(9.0,)]
    assert place.database.table("PEOPLE").name == place.database.table("people").name


def test_two_queries_can_be_read_concurrently(place) -> None:
    people(place)
    with place.database.read("SELECT id FROM people ORDER BY id") as first:
        ones = iter(first.batches)
        one = next(ones)
        assert place.rows("SELECT count(*) FROM people") == [(3,)]
        assert sum(b.num_rows for b in [one, *ones]) == 3


def test_rows_can_be_left_unread(place) -> None:
    place.run("CREATE TABLE many (a INTEGER)")
    batch = pa.record_batch({"a": list(range(100_000))})
    place.database.append("many", RowSource(batch.schema, [batch]))
    with place.database.read("SELECT * FROM many") as rows:
        first = next(iter(rows.batches))

    assert 0 < first.num_rows <= 100_000
    assert place.rows("SELECT count(*) FROM many") == [(100_000,)]


def test_a_table_changed_while_reading_gives_a_consistent_state(place) -> None:
    if "memory" in place.kind:
        pytest.skip("no other connection reaches it")
    place.run("CREATE TABLE many (a INTEGER)")
    batch = pa.record_batch({"a": list(range(100_000))})
    place.database.append("many", RowSource(batch.schema, [batch]))
    changed = 0
    with open_database(place.url) as other, place.database.read("SELECT a FROM many") as rows:
        total = count = 0
        for i, read in enumerate(rows.batches):
            total += sum(read.column(0).to_pylist())
            count += read.num_rows
            if i == 0 and place.kind not in {"sqlite", "sqlalchemy"}:  # those lock writers out
                with other.run("UPDATE many SET a = a + 1"):
                    changed += 1
                with other.run("DELETE FROM many WHERE a > 50000"):
                    changed += 1

    assert (count, total) == (100_000, sum(range(100_000)))
    if changed:
        assert place.rows("SELECT count(*) FROM many") == [(50_000,)]


def test_rows_are_appended_by_name_and_nothing_is_replaced(place) -> None:
    first = pa.record_batch({"name": ["a"], "v": [1.5]})
    second = pa.record_batch({"v": [2.5], "name": ["b"]})

    assert place.database.append("result", RowSource(first.schema, [first])) == 1
    assert place.database.append("result", RowSource(second.schema, [second])) == 1
    assert sorted(place.rows("SELECT name, v FROM result")) == [("a", 1.5), ("b", 2.5)]
    wrong = pa.record_batch({"v": [1.0], "other": ["x"]})
    with pytest.raises(DatabaseError, match="no column 'other'"):
        place.database.append("result", RowSource(wrong.schema, [wrong]))


def test_a_failed_append_leaves_no_rows_and_no_table(place) -> None:
    batch = pa.record_batch({"a": [1]})

    def broken():
        yield batch
        raise KeyError("broken")

    place.run("CREATE TABLE old (a INTEGER)")
    for name in ("old", "new"):
        with pytest.raises(Exception, match="broken"):
            place.database.append(name, RowSource(batch.schema, broken()))

    assert place.rows("SELECT * FROM old") == []
    if place.kind != "sqlalchemy":
        assert place.database.table("new") is None


def test_every_kind_of_value_is_written_and_read_back(place) -> None:
    times = [dt.datetime.fromisoformat("2020-01-02 03:04:05.678"), None]
    columns = {
        "small": pa.array([1, None], pa.int8()),
        "big": pa.array([2**62, -(2**62)]),
        "half": pa.array([0.1, None], pa.float32()),
        "number": [0.1, 1e300],
        "exact": pa.array([Decimal("12.34"), None], pa.decimal128(10, 2)),
        "yes": [True, False],
        "word": ["ä€😀 x ", None],
        "day": [dt.date(2020, 2, 29), None],
        "moment": pa.array(times, pa.timestamp("us")),
        "nothing": pa.array([None, None], pa.null()),
    }
    batch = pa.record_batch(columns)
    place.database.append("t", RowSource(batch.schema, [batch]))
    found = dict(zip(columns, zip(*place.rows("SELECT * FROM t"), strict=True), strict=True))

    assert found["small"] == (1, None)
    assert found["big"] == (2**62, -(2**62))
    assert found["number"] == (0.1, 1e300)
    assert found["half"][0] == pytest.approx(0.1)
    assert float(found["exact"][0]) == 12.34
    assert found["word"] == ("ä€😀 x ", None)
    assert found["nothing"] == (None, None)
    if place.kind != "sqlalchemy":  # whose SQLite says nothing of types
        assert found["yes"] == (True, False)
        assert found["day"] == (dt.date(2020, 2, 29), None)
        assert found["moment"] == tuple(times)


def test_columns_with_only_null_are_read(place) -> None:
    people(place)

    assert place.rows("SELECT NULL AS a, name FROM people WHERE id = 3") == [(None, None)]


def test_an_empty_result_has_its_columns(place) -> None:
    people(place)
    with place.database.read("SELECT id, name, score FROM people WHERE id > 9") as rows:
        assert list(rows.batches) == [] or all(not b.num_rows for b in rows.batches)
    assert rows.schema.names == ["id", "name", "score"]


def test_the_error_message_of_the_database_is_shown(place) -> None:
    with (
        pytest.raises(DatabaseError, match="nowhere"),
        place.database.read("SELECT * FROM nowhere") as rows,
    ):
        list(rows.batches)
    with pytest.raises(DatabaseError), place.database.run("SELEC 1"):
        pass
    with (
        pytest.raises(DatabaseError, match="returns no rows"),
        place.database.read("CREATE TABLE x (a INT)"),
    ):
        pass
    with pytest.raises(DatabaseError, match="no table 'nowhere'"):
        place.database.fill("nowhere", ["id"], given([1], v=[1.0]))
    with pytest.raises(UsageError):
        place.database.table("a..b")


@pytest.mark.parametrize("comment", ["-- all", "/* all */"])
def test_a_select_may_end_with_a_comment(place, comment) -> None:
    people(place)
    select = f"SELECT id FROM people WHERE id < 3 {comment}"

    assert place.database.schema(select).names == ["id"]
    assert sorted(place.rows(select)) == [(1,), (2,)]
    key = place.database.table("people").key
    keyed, _ = with_key(
        f"SELECT name {comment}\nFROM people {comment}",
        place.database.dialect,
        "people",
        key,
        place.database.quote,
    )
    assert min(place.rows(keyed), key=lambda row: row[1]) == ("ann", 1)


def test_a_plain_statement_is_executed(place) -> None:
    people(place)
    place.run("DELETE FROM people WHERE id = 1")

    assert place.rows("SELECT count(*) AS n FROM people") == [(2,)]
    if place.kind != "mariadb":
        place.run("INSERT INTO people VALUES (8, 'x', 1) RETURNING id")
        assert place.rows("SELECT count(*) AS n FROM people WHERE id = 8") == [(1,)]


def test_a_writing_statement_with_a_cte_is_committed(tmp_path) -> None:
    database = open_database(f"sqlite+pysqlite:///{tmp_path / 'a.db'}")

    # SQLite's driver begins no transaction before WITH; those of other databases do.
    @sa.event.listens_for(database._engine, "connect")
    def leave_transactions_to_sqlalchemy(connection, _record) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(database._engine, "begin")
    def begin(connection) -> None:
        connection.exec_driver_sql("BEGIN")

    def run(statement):
        with database.run(statement) as rows:
            return [] if rows is None else [row for b in rows.batches for row in b.to_pylist()]

    run("CREATE TABLE t (id INT)")
    run("WITH one AS (SELECT 9 AS id) INSERT INTO t SELECT id FROM one RETURNING id")

    assert run("SELECT id FROM t") == [{"id": 9}]
    database.close()


def test_a_percent_sign_is_not_a_placeholder(place) -> None:
    people(place)

    assert place.rows("SELECT name FROM people WHERE name LIKE '%n%' AND id % 2 = 1") == [("ann",)]


def test_closing_twice_is_harmless(place) -> None:
    place.database.close()
    place.database.close()


@pytest.mark.parametrize(
    "url", ["", "nothing", "nothing://x", "duckdb:x", "postgresql", "mysql:/x"]
)
def test_an_invalid_database_url_is_refused(url, monkeypatch) -> None:
    monkeypatch.setenv("ELASTICDL_DATABASE", "nothing:at all")
    with pytest.raises(UsageError, match="database"):
        open_database(url)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_an_unreachable_server_is_a_temporary_error(kind) -> None:
    pytest.importorskip({"postgresql": "adbc_driver_postgresql", "mysql": "pymysql"}[kind])
    with pytest.raises(UnavailableError) as caught:
        open_database(f"{kind}://me:secret@127.0.0.1:1/x")

    assert "secret" not in str(caught.value)
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_an_error_about_a_wrong_password_does_not_show_it(kind, request) -> None:
    server = request.getfixturevalue(kind)
    with pytest.raises(DatabaseError) as caught:
        open_database(server.url.replace("secret", "wrongword"))
    assert "wrongword" not in str(caught.value)
    with pytest.raises(DatabaseError):
        open_database(server.url.removesuffix("/test") + "/nowhere")


def test_an_unknown_database_url_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="not a valid database URL.*duckdb:.*mariadb:") as caught:
        open_database("foo://me:secret@x")
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="pip install oracledb"):
        open_database("oracle+oracledb://x/y")


def test_duckdb_does_not_cache_a_large_table_after_reading(tmp_path, monkeypatch) -> None:
    """A cache would take memory that training and prediction need."""
    monkeypatch.setattr(duckdb, "_LARGE_BYTES", 2**20)
    monkeypatch.setattr(duckdb, "_SMALL_LIMIT", "20MB")
    used = "SELECT sum(memory_usage_bytes) AS used FROM duckdb_memory()"
    limit = "SELECT current_setting('memory_limit') AS shown"
    path = f"duckdb:///{tmp_path}/t.db"
    with open_database(path) as database:
        select = "CREATE TABLE t AS SELECT random() AS a, random() AS b FROM range(4000000)"
        with database.run(select):
            pass
    with open_database(path) as database:

        def value(question):
            with database.run(question) as rows:
                return pa.Table.from_batches(rows.batches)[0][0].as_py()

        before = value(limit)
        for _ in range(3):
            with database.read("SELECT * FROM t") as rows:
                num_rows = sum(batch.num_rows for batch in rows.batches)

        assert num_rows == 4_000_000
        assert value(used) < 30 * 2**20
        after = value(limit)
        assert float(after.split()[0]) >= float(before.split()[0]) - 0.11
