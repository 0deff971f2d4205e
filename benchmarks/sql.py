"""Rows out of databases and predictions into them.

* SELECT -> records: a query of ten numeric columns, stored as record files, beside DuckDB's bare
  Arrow scan and its own COPY to Parquet.
* Filling a column of 1e6 rows in PostgreSQL, beside COPY + UPDATE ... FROM as psql runs them, with
  a file of binary rows that was made before, and as written by hand with ADBC; the faster counts.
* Memory while 1e5 and 1e7 rows are read from each database.
"""

import contextlib
import importlib.util
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.record import ratio

ROWS = 1_000_000
RUNS = 3
_SERVERS = Path(__file__).parent.parent / "tests" / "sql" / "servers.py"
_NUMBERS = ", ".join(f"(i * {3 + k}) % 1009 / {7 + k}.0::DOUBLE AS c{k}" for k in range(10))
_READ = """
import sys, time
from elasticdl.sql.database_interface import open_database
start = time.perf_counter()
count = 0
with open_database(sys.argv[1]) as database, database.read(sys.argv[2]) as rows:
    for batch in rows.batches:
        count += batch.num_rows
# Of this process only; getrusage would count what it was forked from.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(count, status["VmHWM"].split()[0], time.perf_counter() - start)
"""
# MariaDB's rows pass through Python one by one: fewer of them, for the time it takes.
_SQLITE = (
    "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t LIMIT {}) "
    "SELECT i AS a, i * 0.5 AS b, 'text ' || i % 100 AS c FROM t"
)
_POSTGRESQL = (
    "SELECT i AS a, i * 0.5::float8 AS b, 'text ' || i % 100 AS c FROM generate_series(1, {}) i"
)
_MANY = {
    "duckdb": ("SELECT i AS a, i * 0.5 AS b, 'text ' || i % 100 AS c FROM range({}) t(i)", 10**7),
    "sqlite": (_SQLITE, 10**7),
    "postgresql": (_POSTGRESQL, 10**7),
    "mariadb": (
        "SELECT seq AS a, seq * 0.5e0 AS b, CONCAT('text ', seq % 100) AS c FROM seq_1_to_{}",
        2 * 10**6,
    ),
}


def run():
    spec = importlib.util.spec_from_file_location("servers", _SERVERS)
    servers = importlib.util.module_from_spec(spec)
    sys.modules["servers"] = servers
    spec.loader.exec_module(servers)
    result = {"select_to_records": select_to_records()}
    with contextlib.ExitStack() as stack:
        urls = {"duckdb": "duckdb://", "sqlite": "sqlite://"}
        if servers.postgresql_folder() is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            urls["postgresql"] = stack.enter_context(servers.postgresql(folder)).url
            result["fill_postgresql"] = fill_postgresql(urls["postgresql"])
        if servers.mariadb_program() is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            urls["mariadb"] = stack.enter_context(servers.mariadb(folder)).url
        result["memory"] = {kind: memory(url, *_MANY[kind]) for kind, url in urls.items()}
    return result


def select_to_records():
    """Return rows per second from a table of ten numeric columns."""
    import duckdb

    from elasticdl.data.snapshot import write_snapshot
    from elasticdl.sql.database_interface import open_database

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = f"{folder}/t.db"
        with open_database(f"duckdb:///{path}") as database:
            with database.run(f"CREATE TABLE t AS SELECT {_NUMBERS} FROM range({ROWS}) r(i)"):
                pass
            ours, read, scan, copy = [], [], [], []
            for i in range(RUNS):
                with database.read("SELECT * FROM t") as rows:
                    start = time.perf_counter()
                    write_snapshot(rows.schema, rows.batches, f"{folder}/{i}", held_out=0.2)
                    ours.append(round(ROWS / (time.perf_counter() - start)))
                with database.read("SELECT * FROM t") as rows:
                    start = time.perf_counter()
                    assert sum(batch.num_rows for batch in rows.batches) == ROWS
                    read.append(round(ROWS / (time.perf_counter() - start)))
                cursor = duckdb.connect(path)
                start = time.perf_counter()
                reader = cursor.sql("SELECT * FROM t").to_arrow_reader(1 << 15)
                assert sum(batch.num_rows for batch in reader) == ROWS
                scan.append(round(ROWS / (time.perf_counter() - start)))
                start = time.perf_counter()
                cursor.execute(f"COPY t TO '{folder}/copy{i}.parquet' (COMPRESSION zstd)")
                copy.append(round(ROWS / (time.perf_counter() - start)))
                cursor.close()
    return {
        "rows": ROWS,
        "to_records_rows_per_s": statistics.median(ours),
        "read_rows_per_s": statistics.median(read),
        "bare_scan_rows_per_s": statistics.median(scan),
        "copy_to_parquet_rows_per_s": statistics.median(copy),
        "bar_rows_per_s": 200_000,
        "met": statistics.median(ours) >= 200_000,
        "runs": {"to_records": ours, "read": read, "scan": scan, "copy": copy},
    }


def fill_postgresql(url):
    """Return rows per second that a column gets, beside what is written by hand."""
    import adbc_driver_postgresql.dbapi as adbc

    from elasticdl.sql.database_interface import RowSource, open_database

    keys = pa.array(range(ROWS))
    values = pa.array([i * 0.5 for i in range(ROWS)])
    batch = pa.record_batch({"k": keys, "score": values})
    batches = [batch.slice(start, 1 << 15) for start in range(0, ROWS, 1 << 15)]
    update = "UPDATE big SET score = given.score FROM given WHERE big.id = given.k"
    create = "CREATE TEMPORARY TABLE given (k bigint, score double precision) ON COMMIT DROP"
    ours, by_hand, by_psql = [], [], []

    def execute(*statements):
        with adbc.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.bin"
        with rows.open("wb") as file:
            file.write(b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0))
            for i in range(ROWS):
                file.write(struct.pack(">hiqid", 2, 8, i, 8, i * 0.5))
            file.write(struct.pack(">h", -1))
        for _ in range(RUNS):
            create_table(execute)
            start = time.perf_counter()
            with open_database(url) as database:
                assert database.fill("big", ["id"], RowSource(batch.schema, batches)) == ROWS
            ours.append(round(ROWS / (time.perf_counter() - start)))

            create_table(execute)
            start = time.perf_counter()
            with adbc.connect(url) as connection:
                with connection.cursor() as cursor:
                    cursor.execute(create)
                    cursor.adbc_ingest("given", pa.Table.from_batches(batches), mode="append",
                                       temporary=True)  # fmt: skip
                    cursor.execute(update)
                connection.commit()
            by_hand.append(round(ROWS / (time.perf_counter() - start)))

            create_table(execute)
            script = (f"BEGIN;\n{create};\n\\copy given FROM '{rows}' WITH (FORMAT binary)\n"
                      f"{update};\nCOMMIT;\n")  # fmt: skip
            start = time.perf_counter()
            subprocess.run(["psql", "-q", "-v", "ON_ERROR_STOP=1", url], input=script, text=True,
                           check=True)  # fmt: skip
            by_psql.append(round(ROWS / (time.perf_counter() - start)))
        execute("DROP TABLE big")
    peer = max(by_hand, by_psql, key=statistics.median)
    return {
        "rows": ROWS,
        **ratio(ours, peer, 0.7),
        "adbc_by_hand_rows_per_s": statistics.median(by_hand),
        "psql_binary_copy_rows_per_s": statistics.median(by_psql),
    }


def create_table(execute):
    execute(
        "DROP TABLE IF EXISTS big",
        "CREATE TABLE big AS SELECT (i - 1)::int AS id, 'name ' || i AS name, "
        f"NULL::float8 AS score FROM generate_series(1, {ROWS}) i",
        "ALTER TABLE big ADD PRIMARY KEY (id)",
        "VACUUM ANALYZE big",
        "CHECKPOINT",
    )


def memory(url, select, many):
    """Return the peak memory of reading few and many rows, in MB."""
    found = {}
    for rows in (10**5, many):
        done = subprocess.run(
            [sys.executable, "-c", _READ, url, select.format(rows)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        count, peak_kb, seconds = done.stdout.split()
        assert int(count) == rows, count
        found[f"{rows:.0e}_rows"] = {
            "peak_mb": round(int(peak_kb) / 1024),
            "rows_per_s": round(rows / float(seconds)),
        }
    return found
