"""Ctrl-C and `interrupt` end what a database computes, there as well as here."""

from __future__ import annotations

import os
import signal
import threading
import time

import pyarrow as pa
import pytest

from elasticdl.sql.database_interface import DatabaseError, RowSource, open_database
from elasticdl.sql.databases import queries

# Each takes more than half a minute.
_SQLITE = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000000) "
    "SELECT max(i) AS m FROM n"
)
_ENDLESS = {
    "duckdb": "SELECT sum(a.range * b.range) AS s FROM range(10000000) a, range(1000000) b",
    "sqlite": _SQLITE,
    "sqlite in memory": _SQLITE,
    "sqlalchemy": _SQLITE,
    "sqlalchemy in memory": _SQLITE,
    "postgresql": "SELECT sum(a * b) AS s FROM generate_series(1, 100000) a, "
    "generate_series(1, 100000) b",
    "mariadb": "SELECT sum(a.seq * b.seq) AS s FROM seq_1_to_100000 a, seq_1_to_100000 b",
}
_RUNNING = {
    "postgresql": "SELECT count(*) AS n FROM pg_stat_activity WHERE state = 'active' "
    "AND query LIKE '%100000%' AND pid <> pg_backend_pid()",
    "mariadb": "SELECT count(*) AS n FROM information_schema.processlist "
    "WHERE info LIKE '%100000%' AND id <> connection_id()",
}
# Less than any of them takes, and more than a busy machine needs.
_SOON_S = 15.0


@pytest.fixture(params=list(_ENDLESS))
def database(request, tmp_path):
    kind = request.param
    urls = {
        "duckdb": "duckdb://", "sqlite": f"sqlite:///{tmp_path}/test.db",
        "sqlite in memory": "sqlite://", "sqlalchemy in memory": "sqlite+pysqlite:///:memory:",
        "sqlalchemy": f"sqlite+pysqlite:///{tmp_path}/test.db",
    }  # fmt: skip
    url = urls[kind] if kind in urls else request.getfixturevalue(kind).url
    with open_database(url) as opened:
        opened.kind = kind
        yield opened
        assert rows_of(opened, "SELECT 7 AS seven") == [(7,)]
    if kind in _RUNNING:
        with open_database(url) as other:
            assert rows_of(other, _RUNNING[kind]) == [(0,)]


def rows_of(database, select: str) -> list[tuple]:
    with database.read(select) as rows:
        return [tuple(row.values()) for b in rows.batches for row in b.to_pylist()]


def ctrl_c(after_s: float = 0.5) -> threading.Timer:
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.timeout(60)
def test_ctrl_c_ends_a_query_locally_and_on_the_server(database) -> None:
    begun_s = time.monotonic()
    timer = ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        rows_of(database, _ENDLESS[database.kind])
    timer.join()

    assert time.monotonic() - begun_s < _SOON_S


@pytest.mark.timeout(60)
def test_another_thread_can_cancel_a_query(database) -> None:
    errors = []

    def ask() -> None:
        try:
            rows_of(database, _ENDLESS[database.kind])
        except DatabaseError as error:
            errors.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    time.sleep(0.5)
    begun_s = time.monotonic()
    database.interrupt()
    asking.join(_SOON_S)

    assert time.monotonic() - begun_s < _SOON_S
    assert len(errors) == 1


@pytest.mark.timeout(60)
def test_ctrl_c_while_filling_keeps_the_table(database) -> None:
    for statement in (
        "DROP TABLE IF EXISTS many",
        "CREATE TABLE many (id INTEGER PRIMARY KEY, v DOUBLE PRECISION)",
        "INSERT INTO many VALUES (1, 0.5), (2, 0.5)",
    ):
        with database.run(statement):
            pass
    schema = pa.schema({"k": pa.int64(), "v": pa.float64(), "extra": pa.float64()})
    begun = threading.Event()

    def batches():
        for key in range(10**9):
            begun.set()
            yield pa.record_batch([[key], [1.0], [1.0]], schema=schema)

    def interrupt() -> None:
        begun.wait()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        database.fill("many", ["id"], RowSource(schema, batches()))
    thread.join()

    assert time.monotonic() - begun_s < _SOON_S
    assert rows_of(database, "SELECT id, v FROM many ORDER BY id") == [(1, 0.5), (2, 0.5)]
    # SQLAlchemy's SQLite commits an added column by itself.
    if not database.kind.startswith("sqlalchemy"):
        assert list(database.table("many").columns) == ["id", "v"]


@pytest.mark.timeout(60)
def test_pressing_ctrl_c_twice_ends_a_query() -> None:
    ended = threading.Event()

    def cancel() -> None:
        time.sleep(0.4)
        ended.set()

    with queries.Queries().registered(cancel) as query:
        timers = [ctrl_c(0.2), ctrl_c(0.35)]
        with pytest.raises(KeyboardInterrupt):
            query.wait_for(ended.wait)
        for timer in timers:
            timer.join()

    assert ended.is_set()
    assert query.abandoned is None


@pytest.mark.timeout(60)
def test_ctrl_c_does_not_wait_for_a_lost_server(postgresql, monkeypatch) -> None:
    monkeypatch.setattr(queries, "PATIENCE_S", 1.0)
    with open_database(postgresql.url) as database:
        stopped = threading.Timer(0.5, postgresql.process.send_signal, (signal.SIGSTOP,))
        stopped.start()
        timer = ctrl_c(1.0)
        begun_s = time.monotonic()
        try:
            # The sleeping backend answers nobody but the postmaster.
            with pytest.raises(KeyboardInterrupt):
                rows_of(database, "SELECT pg_sleep(8)::text AS slept")
            timer.join()
            assert time.monotonic() - begun_s < _SOON_S
        finally:
            stopped.join()
            postgresql.process.send_signal(signal.SIGCONT)
