"""What becomes of each type of a database: the tables of `plain.py` and of the databases' files."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from elasticdl.sql.database_interface import DatabaseError, open_database


def read(url: str, select: str):
    """Return the Arrow type and the values of the first column."""
    with open_database(url) as database, database.read(select) as rows:
        values = [value for batch in rows.batches for value in batch.column(0).to_pylist()]
        return str(rows.schema.types[0]), values


@pytest.mark.parametrize(
    ("sql", "type_", "value"),
    [
        ("1::int2", "int16", 1),
        ("9223372036854775807::int8", "int64", 2**63 - 1),
        ("1.5::real", "float", 1.5),
        ("true", "bool", True),
        ("12.340::numeric(10,3)", "decimal128(10, 3)", Decimal("12.340")),
        ("12.34::numeric", "double", 12.34),
        ("1e60::numeric", "double", 1e60),
        ("'NaN'::numeric", "double", float("nan")),
        ("'ab'::char(4)", "string", "ab"),
        ("'ab  '::varchar", "string", "ab  "),
        ("'happy'::mood", "string", "happy"),
        ("'{\"a\": 1}'::jsonb", "string", '{"a": 1}'),
        ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "string",
         "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("'\\x00ff'::bytea", "binary", b"\0\xff"),
        ("date '2020-02-29'", "date32[day]", dt.date(2020, 2, 29)),
        ("timestamp '2020-01-02 03:04:05.678'", "timestamp[us]",
         dt.datetime.fromisoformat("2020-01-02 03:04:05.678")),
        ("timestamptz '2020-01-02 03:04:05+02'", "timestamp[us, tz=UTC]",
         dt.datetime.fromisoformat("2020-01-02 01:04:05+00:00")),
        ("array[1,null,3]", "list<item: int32>", [1, None, 3]),
        ("array[1.5]::float8[]", "list<item: double>", [1.5]),
        ("array[1.5,null]::numeric[]", "list<item: double>", [1.5, None]),
        ("array['a']", "list<item: string>", ["a"]),
        ("array[[1,2],[3,4]]", "list<item: int32>", [1, 2, 3, 4]),
        ("null::int4", "int32", None),
    ],
)  # fmt: skip
def test_types_of_postgresql_are_read(postgresql, sql, type_, value) -> None:
    postgresql.query("DROP TYPE IF EXISTS mood", "CREATE TYPE mood AS ENUM ('sad', 'happy')")
    found, values = read(postgresql.url, f"SELECT {sql} AS c")

    assert found == type_
    assert values == [value] or str(values) == str([value]) == "[nan]"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("interval '1 month'", "EXTRACT"),
        ("money '3.50'", "money"),
        ("inet '1.2.3.4'", "inet"),
        ("point(1,2)", "point"),
        ("int4range(1,2)", "is not supported"),
        ("b'101'", "bit"),
        ("1::oid", "oid"),
        ("array[interval '1 day']", "INTERVAL"),
        ("date 'infinity'", "infinite"),
        ("timestamp '-infinity'", "infinite"),
        ("timestamptz 'infinity'", "infinite"),
        ("date '0044-03-15 BC'", "years 1 to 9999"),
        ("'NaN'::numeric(10,2)", "column 'c'"),
    ],
)
def test_types_that_are_refused_in_postgresql(postgresql, sql, reason) -> None:
    with pytest.raises(DatabaseError, match="column 'c'") as caught:
        read(postgresql.url, f"SELECT {sql} AS c")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "type_", "value"),
    [
        ("TINYINT(1)", "bool", True),
        ("BOOLEAN", "bool", True),
        ("BIT(1)", "bool", True),
        ("BIT(9)", "uint64", 1),
        ("TINYINT", "int8", 1),
        ("TINYINT UNSIGNED", "uint8", 1),
        ("BIGINT UNSIGNED", "uint64", 2**64 - 1),
        ("YEAR", "int16", 2020),
        ("DECIMAL(10,3)", "decimal128(38, 3)", Decimal("12.340")),
        ("DECIMAL(65,0)", "double", 1e60),
        ("DOUBLE", "double", 0.1),
        ("FLOAT", "float", 1.5),
        ("CHAR(4)", "string", "ab"),
        ("TEXT", "string", "ä€😀"),
        ("ENUM('x','y')", "string", "y"),
        ("JSON", "string", '{"a": 1}'),
        ("UUID", "string", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("BLOB", "binary", b"\0\xff"),
        ("BINARY(2)", "binary", b"\0\xff"),
        ("DATE", "date32[day]", dt.date(2020, 2, 29)),
        ("TIME", "time64[us]", dt.time(3, 4, 5)),
        ("DATETIME(3)", "timestamp[us]", dt.datetime.fromisoformat("2020-01-02 03:04:05.678")),
    ],
)
def test_types_of_mariadb_are_read(mariadb, sql, type_, value) -> None:
    text = f"x'{value.hex()}'" if isinstance(value, bytes) else f"'{value}'"
    if isinstance(value, (int, float)):
        text = repr(int(value) if value == int(value) else value)
    if value == 1e60:
        text = "1" + "0" * 60
    mariadb.query(
        "DROP TABLE IF EXISTS typed",
        f"CREATE TABLE typed (c {sql}) CHARACTER SET utf8mb4",
        f"INSERT INTO typed VALUES ({text}), (NULL)",
    )

    assert read(mariadb.url, "SELECT c FROM typed") == (type_, [value, None])


def test_mariadb_timestamps_do_not_depend_on_the_server_time_zone(mariadb) -> None:
    mariadb.query(
        "DROP TABLE IF EXISTS typed",
        "CREATE TABLE typed (c TIMESTAMP)",
        "SET time_zone = '+05:00'",
        "INSERT INTO typed VALUES (FROM_UNIXTIME(1577934245))",
    )

    assert read(mariadb.url, "SELECT c FROM typed") == (
        "timestamp[us, tz=UTC]", [dt.datetime.fromtimestamp(1577934245, dt.UTC)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("TINYINT(1)", "5", "neither 0 nor 1"),
        ("TIME", "'-30:00:00'", "not a time of day"),
        ("TIME", "'30:00:00'", "not a time of day"),
        ("POINT", "POINT(1,2)", "ST_X"),
    ],
)
def test_values_that_are_refused_in_mariadb(mariadb, type_, value, reason) -> None:
    mariadb.query(
        "DROP TABLE IF EXISTS typed",
        f"CREATE TABLE typed (c {type_})",
        f"INSERT INTO typed VALUES ({value})",
    )
    with pytest.raises(DatabaseError, match="column 'c'") as caught:
        read(mariadb.url, "SELECT c FROM typed")
    assert reason in str(caught.value)


def test_a_date_of_zeros_is_refused_in_mariadb(mariadb) -> None:
    with pytest.raises(DatabaseError, match="0000-00-00"):
        read(mariadb.url, "SELECT CAST('0000-00-00' AS DATE) AS c")


@pytest.mark.parametrize(
    ("type_", "values", "found", "expected"),
    [
        ("INTEGER", [1, None], "int64", [1, None]),
        ("INTEGER", [2**62], "int64", [2**62]),
        ("REAL", [1, 2.5], "double", [1.0, 2.5]),
        ("", [1, 2.5], "double", [1.0, 2.5]),
        ("NUMERIC", [1, 2], "double", [1.0, 2.0]),
        ("DECIMAL(10,2)", ["1.25"], "double", [1.25]),
        ("BOOLEAN", [1, 0, None], "bool", [True, False, None]),
        ("BOOLEAN", [None], "bool", [None]),
        ("DATE", ["2020-02-29"], "date32[day]", [dt.date(2020, 2, 29)]),
        ("DATETIME", ["2020-01-02 03:04:05", "2020-01-02T03:04:05+02:00"], "timestamp[us]",
         [dt.datetime.fromisoformat("2020-01-02 03:04:05"),
          dt.datetime.fromisoformat("2020-01-02 01:04:05")]),
        ("TEXT", ["5", None], "string", ["5", None]),
        ("TEXT", [None], "string", [None]),
        ("BLOB", [b"x"], "binary", [b"x"]),
        ("BLOB", [None], "null", [None]),
        ("", [None], "null", [None]),
    ],
)  # fmt: skip
def test_types_of_sqlite_are_read(tmp_path, type_, values, found, expected) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute(f"CREATE TABLE t (c {type_})")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    connection.close()

    assert read(f"sqlite:///{tmp_path}/t.db", "SELECT c FROM t") == (found, expected)


def test_the_type_of_a_sqlite_column_fits_all_rows(tmp_path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE t (c)")
        connection.executemany("INSERT INTO t VALUES (?)", [(None,)] * 40_000 + [(1,), (0.5,)])
    connection.close()
    found, values = read(f"sqlite:///{tmp_path}/t.db", "SELECT c FROM t")

    assert found == "double"
    assert values[-2:] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("type_", "values", "reason"),
    [
        ("INTEGER", [1, "x"], "integer in 1 rows, text in 1 rows"),
        ("", ["x", b"x"], "different types"),
        ("BOOLEAN", [1, 2], "neither 0 nor 1"),
        ("DATE", ["yesterday"], "yesterday"),
    ],
)
def test_values_that_are_refused_in_sqlite(tmp_path, type_, values, reason) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute(f"CREATE TABLE t (c {type_})")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    connection.close()
    with pytest.raises(DatabaseError, match="column 'c'") as caught:
        read(f"sqlite:///{tmp_path}/t.db", "SELECT c FROM t")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "type_", "value"),
    [
        ("1::HUGEINT", "decimal128(38, 0)", Decimal(1)),
        ("18446744073709551615::UBIGINT", "uint64", 2**64 - 1),
        ("1.50::DECIMAL(5,2)", "decimal128(5, 2)", Decimal("1.50")),
        ("'b'::ENUM('a', 'b')", "string", "b"),
        ("'{\"a\":1}'::JSON", "string", '{"a":1}'),
        ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID", "string",
         "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("TIMESTAMPTZ '2020-01-02 03:04:05+02'", "timestamp[us, tz=UTC]",
         dt.datetime.fromisoformat("2020-01-02 01:04:05+00:00")),
        ("['a', NULL]::ENUM('a')[]", "list<item: string>", ["a", None]),
    ],
)  # fmt: skip
def test_types_of_duckdb_are_read(sql, type_, value) -> None:
    assert read("duckdb://", f"SELECT {sql} AS c") == (type_, [value])


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("INTERVAL 1 MONTH", "EXTRACT"),
        ("union_value(a := 1)", "UNION"),
        ("12345678901234567890123456789012345678901234567890::BIGNUM", "bignum"),
        ("DATE 'infinity'", "infinite"),
        ("TIMESTAMP '-infinity'", "infinite"),
    ],
)
def test_types_that_are_refused_in_duckdb(sql, reason) -> None:
    with pytest.raises(DatabaseError, match="column 'c'") as caught:
        read("duckdb://", f"SELECT {sql} AS c")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("numeric", ["1.10", "12345678901234567890.5"]),
        ("numeric(30,5)", ["1.10", "1234567890123456789.12345"]),
        ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        ("timestamptz", ["2020-01-02 03:04:05.678901+00"]),
        ("date", ["2020-02-29"]),
        ("bytea", ["\\x00ff"]),
        ("inet", ["1.2.3.4"]),
        ("char(5)", ["ab"]),
        ("varchar(5)", ["ab "]),
        ("float8", ["0.1"]),
        ("smallint", ["7"]),
        ("interval", ["1 mon"]),
    ],
)
def test_a_key_of_any_type_finds_its_row_in_postgresql(postgresql, type_, values, tmp_path) -> None:
    from elasticdl.sql.prediction import PredictRequest, plan

    rows = ", ".join(f"('{value}')" for value in values)
    postgresql.query(
        "DROP TABLE IF EXISTS keyed",
        f"CREATE TABLE keyed (id {type_} PRIMARY KEY, v float8)",
        f"INSERT INTO keyed(id) VALUES {rows}",
    )
    check_key(postgresql.url, PredictRequest("SELECT v FROM keyed", "keyed", "v", "m"), plan)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("DECIMAL(30,5)", ["1.1", "1234567890123456789.12345"]),
        ("VARCHAR(5) COLLATE utf8mb4_bin", ["a", "A"]),
        ("VARCHAR(5)", ["a", "b"]),
        ("DATETIME(6)", ["2020-01-02 03:04:05.678901"]),
        ("TIMESTAMP(6)", ["2020-01-02 03:04:05.678901"]),
        ("DATE", ["2020-02-29"]),
        ("BINARY(3)", ["ab"]),
        ("BIGINT UNSIGNED", ["18446744073709551615"]),
        ("DOUBLE", ["0.1"]),
        ("UUID", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        ("ENUM('x','y')", ["y"]),
    ],
)
def test_a_key_of_any_type_finds_its_row_in_mariadb(mariadb, type_, values) -> None:
    from elasticdl.sql.prediction import PredictRequest, plan

    rows = ", ".join(f"('{value}')" for value in values)
    mariadb.query(
        "DROP TABLE IF EXISTS keyed",
        f"CREATE TABLE keyed (id {type_} PRIMARY KEY, v DOUBLE)",
        f"INSERT INTO keyed(id) VALUES {rows}",
    )
    check_key(mariadb.url, PredictRequest("SELECT v FROM keyed", "keyed", "v", "m"), plan)


def check_key(url: str, request, plan) -> None:
    """Fill each row by the key that the plan reads."""
    import pyarrow as pa

    from elasticdl.sql.database_interface import RowSource

    with open_database(url) as database:
        how = plan(request, database)
        with database.read(how.select) as rows:
            table = pa.Table.from_batches(rows.batches, rows.schema)
        key = table.column(1)
        given = pa.table({"k": key, "v": [float(i) for i in range(len(key))]})
        assert database.fill(
            request.table, how.key, RowSource(given.schema, given.to_batches())
        ) == len(key)
        with database.read(f"SELECT count(v), sum(v) FROM {request.table}") as rows:
            (batch,) = rows.batches
            found = batch.to_pylist()[0]
    assert [float(value) for value in found.values()] == [len(key), sum(range(len(key)))]


def test_statements_other_than_queries_can_return_rows_in_mariadb(mariadb) -> None:
    mariadb.query(
        "DROP TABLE IF EXISTS shown", "CREATE TABLE shown (id INTEGER PRIMARY KEY, w VARCHAR(9))"
    )

    assert ("shown",) in mariadb.query("SHOW TABLES")
    assert [row[:2] for row in mariadb.query("DESCRIBE shown")] == [
        ("id", "int(11)"),
        ("w", "varchar(9)"),
    ]
    # A result without a row keeps its columns.
    assert mariadb.query("SHOW TABLES LIKE 'missing'") == []
    assert mariadb.query("INSERT INTO shown VALUES (1, 'a') RETURNING id, w") == [(1, "a")]
    assert mariadb.query("SELECT w FROM shown") == [("a",)]
