"""Processes killed while they fill a column, connections cut, locks, servers that are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest

from elasticdl.errors import UnavailableError
from elasticdl.sql.database_interface import DatabaseError, RowSource, open_database

_ROWS = 60_000
# Fills v, which is there, and new_N, which is not, with a number.
_FILL = """
import sys
import pyarrow as pa
from elasticdl.sql.database_interface import RowSource, open_database
url, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schema = pa.schema({"k": pa.int64(), "v": pa.float64(), f"new_{number}": pa.float64()})
def batches():
    for start in range(0, count, 5000):
        size = min(5000, count - start)
        values = pa.array([float(number)] * size)
        yield pa.record_batch([pa.array(range(start, start + size)), values, values], schema=schema)
with open_database(url) as database:
    print("ready", flush=True)
    database.fill("many", ["id"], RowSource(schema, batches()))
    print("done", flush=True)
"""
_HOLD = """
import sys
import duckdb
connection = duckdb.connect(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["duckdb", "sqlite", "postgresql", "mariadb"])
def url(request, tmp_path):
    if request.param in {"duckdb", "sqlite"}:
        return f"{request.param}:///{tmp_path}/test.db"
    server = request.getfixturevalue(request.param)
    server.query("DROP TABLE IF EXISTS many")
    return server.url


def ask(url: str, select: str) -> list[tuple]:
    with open_database(url) as database, database.read(select) as rows:
        return [tuple(row.values()) for b in rows.batches for row in b.to_pylist()]


def create(url: str, count: int) -> None:
    with open_database(url) as database:
        with database.run("CREATE TABLE many (id INTEGER PRIMARY KEY, v DOUBLE PRECISION)"):
            pass
        batch = pa.record_batch({"id": list(range(count)), "v": [0.0] * count})
        database.append("many", RowSource(batch.schema, [batch]))


def filling(url: str, number: int) -> subprocess.Popen[str]:
    """Start a process that fills the table, and wait until it begins."""
    process = subprocess.Popen(
        [sys.executable, "-c", _FILL, url, str(number), str(_ROWS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((0.05, 0.5, 0.9, 1.05), id="four"),
        pytest.param(
            (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 1.05),
            id="nine",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_killed_writer_leaves_a_table_unchanged_or_complete(url, parts) -> None:
    create(url, _ROWS)
    start = time.monotonic()
    process = filling(url, 1)
    begun = time.monotonic()
    assert process.communicate()[0] == "done\n"
    whole = time.monotonic() - begun
    print(f"{url}: {whole:.2f} s a fill, {begun - start:.2f} s to start")
    done = 1
    for number, part in enumerate(parts, start=2):
        process = filling(url, number)
        time.sleep(whole * part)
        process.kill()
        said, _ = process.communicate()
        ((least, most, count),) = ask(url, "SELECT min(v), max(v), count(*) FROM many")

        assert count == _ROWS
        assert least == most
        assert least in ({number} if said else {done, number})
        done = int(least)
        with open_database(url) as database:
            columns = database.table("many").columns
        new = f"new_{number}"
        if done == number:
            assert ask(url, f"SELECT min({new}), count({new}) FROM many") == [(number, _ROWS)]
        elif new in columns:
            # MariaDB commits an added column by itself.
            assert url.startswith("mysql")
            assert ask(url, f"SELECT count({new}) FROM many") == [(0,)]


_CUT = {
    "postgresql": "SELECT pg_terminate_backend(pid) AS ended FROM pg_stat_activity "
    "WHERE application_name = 'elasticdl' AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist "
    "WHERE user = 'tester' AND id <> connection_id()",
}


def cut(url: str) -> None:
    """End all other connections of ours."""
    kind = url.partition(":")[0]
    found = ask(url, _CUT[kind])
    assert found
    if kind == "mysql":
        for (number,) in found:
            with open_database(url) as database, database.run(f"KILL CONNECTION {number}"):
                pass


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_lost_connection_while_reading_is_a_temporary_error(kind, request) -> None:
    url = request.getfixturevalue(kind).url
    many = {
        "postgresql": "SELECT g, repeat('x', 200) AS t FROM generate_series(1, 2000000) g",
        "mariadb": "SELECT seq, repeat('x', 200) AS t FROM seq_1_to_2000000",
    }[kind]
    with open_database(url) as database, database.read(many) as rows:
        batches = iter(rows.batches)
        next(batches)
        cut(url)
        with pytest.raises(UnavailableError) as caught:
            for _ in batches:
                pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("column", ["v", "extra"])
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_lost_connection_while_filling_keeps_the_table(kind, column, request) -> None:
    server = request.getfixturevalue(kind)
    server.query("DROP TABLE IF EXISTS many")
    create(server.url, 1000)
    schema = pa.schema({"k": pa.int64(), column: pa.float64()})

    def batches():
        for i in range(100):
            if i == 50:
                cut(server.url)
            yield pa.record_batch([list(range(i * 10, i * 10 + 10)), [1.0] * 10], schema=schema)

    with open_database(server.url) as database, pytest.raises(UnavailableError):
        database.fill("many", ["id"], RowSource(schema, batches()))

    assert ask(server.url, "SELECT min(v), max(v), count(v) FROM many") == [(0.0, 0.0, 1000)]
    with open_database(server.url) as database:
        assert list(database.table("many").columns) == ["id", "v"]


def test_a_locked_sqlite_file_is_a_temporary_error(tmp_path, monkeypatch) -> None:
    import sqlite3

    from elasticdl.sql.databases import sqlite

    url = f"sqlite:///{tmp_path}/test.db"
    create(url, 10)
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.2)
    batch = pa.record_batch({"k": [1], "v": [1.0]})
    with sqlite3.connect(tmp_path / "test.db") as other, open_database(url) as database:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="locked"):
            database.fill("many", ["id"], RowSource(batch.schema, [batch]))
        other.rollback()
        assert database.fill("many", ["id"], RowSource(batch.schema, [batch])) == 1
    other.close()


def test_a_duckdb_file_in_use_is_a_temporary_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.sql.databases.duckdb._ENDING_S", 0.0)
    url = f"duckdb:///{tmp_path}/test.db"
    create(url, _ROWS)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, f"{tmp_path}/test.db"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(UnavailableError, match="lock"):
        open_database(url)
    holder.communicate()
    open_database(url).close()


def test_two_writers_of_one_row_in_postgresql_wait_for_each_other(postgresql) -> None:
    postgresql.query("DROP TABLE IF EXISTS many")
    create(postgresql.url, 100)
    failures = []

    def fill(order: int) -> None:
        keys = list(range(100))[::order]
        batch = pa.record_batch({"k": keys, "v": [float(order)] * 100})
        try:
            with open_database(postgresql.url) as database:
                for _ in range(5):
                    database.fill("many", ["id"], RowSource(batch.schema, [batch]))
        except UnavailableError as error:  # a deadlock
            failures.append(error)

    threads = [threading.Thread(target=fill, args=(order,)) for order in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    ((least, most),) = ask(postgresql.url, "SELECT min(v), max(v) FROM many")
    assert least == most
    assert len(failures) < 2


def test_a_table_without_transactions_is_refused_in_mariadb(mariadb) -> None:
    mariadb.query(
        "DROP TABLE IF EXISTS many",
        "CREATE TABLE many (id INTEGER PRIMARY KEY, v DOUBLE) ENGINE=MyISAM",
    )
    with open_database(mariadb.url) as database:
        info = database.table("many")
        assert not info.key
        assert "ENGINE=InnoDB" in info.why_no_key
        batch = pa.record_batch({"id": [1], "v": [1.0]})
        with pytest.raises(DatabaseError, match="does not support transactions"):
            database.append("many", RowSource(batch.schema, [batch]))
    assert mariadb.query("SELECT count(*) AS n FROM many") == [(0,)]


def test_a_failing_trigger_keeps_the_table_unchanged_in_postgresql(postgresql) -> None:
    postgresql.query("DROP TABLE IF EXISTS many")
    create(postgresql.url, 100)
    postgresql.query(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF NEW.id = 99 THEN RAISE EXCEPTION 'not number 99'; END IF; RETURN NEW; END$$",
        "CREATE TRIGGER refusing BEFORE UPDATE ON many FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    batch = pa.record_batch({"k": list(range(100)), "v": [1.0] * 100, "extra": ["x"] * 100})
    with (
        open_database(postgresql.url) as database,
        pytest.raises(DatabaseError, match="not number 99"),
    ):
        database.fill("many", ["id"], RowSource(batch.schema, [batch]))

    assert ask(postgresql.url, "SELECT max(v) FROM many") == [(0.0,)]
    with open_database(postgresql.url) as database:
        assert list(database.table("many").columns) == ["id", "v"]


_SUPPRESSED = {
    "postgresql": (
        (
            "CREATE OR REPLACE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN IF NEW.id < 3 THEN RETURN NULL; END IF; RETURN NEW; END$$"
        ),
        "CREATE TRIGGER suppressing BEFORE UPDATE ON many FOR EACH ROW EXECUTE FUNCTION suppress()",
    ),
    "a rule of postgresql": (
        "CREATE RULE suppressing AS ON UPDATE TO many WHERE OLD.id < 3 DO INSTEAD NOTHING",
    ),
    "sqlite": (
        (
            "CREATE TRIGGER suppressing BEFORE UPDATE ON many WHEN NEW.id < 3 "
            "BEGIN SELECT RAISE(IGNORE); END"
        ),
    ),
}


@pytest.mark.parametrize("kind", ["postgresql", "a rule of postgresql", "sqlite", "sqlalchemy"])
def test_rows_that_a_trigger_keeps_unchanged_end_a_fill(kind, request, tmp_path) -> None:
    drivers = {"sqlite": "sqlite", "sqlalchemy": "sqlite+pysqlite"}
    url = (
        f"{drivers[kind]}:///{tmp_path}/test.db"
        if kind in drivers
        else request.getfixturevalue("postgresql").url
    )
    with open_database(url) as database, database.run("DROP TABLE IF EXISTS many"):
        pass
    create(url, 10)
    with open_database(url) as database:
        for statement in _SUPPRESSED["sqlite" if kind in drivers else kind]:
            with database.run(statement):
                pass
        # 20 is gone, which is no failure.
        batch = pa.record_batch({"k": [1, 2, 5, 20], "v": [1.0] * 4})
        with pytest.raises(DatabaseError, match="many was not filled: 2 .*trigger"):
            database.fill("many", ["id"], RowSource(batch.schema, [batch]))
        assert ask(url, "SELECT max(v) FROM many") == [(0.0,)]
        rest = batch.slice(2)
        assert database.fill("many", ["id"], RowSource(rest.schema, [rest])) == 1


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_column_added_by_two_programs_concurrently_is_filled_by_both(kind, request) -> None:
    server = request.getfixturevalue(kind)
    server.query("DROP TABLE IF EXISTS many")
    create(server.url, 2)

    def at_once(column: str, *values) -> list:
        """Fill one row each by two programs, both of which find the column missing."""
        both_began, found = threading.Barrier(2, timeout=20), [None, None]

        def fill(key: int) -> None:
            batch = pa.record_batch({"k": [key], column: [values[key]]})

            def batches():
                both_began.wait()
                yield batch

            with open_database(server.url) as database:
                try:
                    found[key] = database.fill("many", ["id"], RowSource(batch.schema, batches()))
                except DatabaseError as error:
                    found[key] = str(error)

        threads = [threading.Thread(target=fill, args=(key,)) for key in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    assert at_once("same", 0.5, 1.5) == [1, 1]
    assert ask(server.url, "SELECT id, same FROM many ORDER BY id") == [(0, 0.5), (1, 1.5)]
    done, refused = sorted(at_once("other", 0.5, "word"), key=str)
    assert done == 1
    assert "the column other is " in refused
    assert ask(server.url, "SELECT count(other) AS n FROM many") == [(1,)]
