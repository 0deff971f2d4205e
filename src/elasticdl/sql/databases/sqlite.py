"""SQLite through the standard library.

A SQLite column stores any value, whatever its declared type, so each query runs twice: first to
find the types of its values, then to read them. Types are converted as in `plain.py`, and:

* Integers are int64. Reals are float64, also when mixed with integers, and so are numbers in
  columns declared NUMERIC or DECIMAL.
* Columns declared BOOLEAN are bool, those declared DATE are dates, DATETIME or TIMESTAMP are
  timestamps (strings in ISO 8601; a zone is converted to UTC and dropped). Any other value in them
  is rejected.
* A column that mixes numbers with strings, or strings with blobs, is rejected with an error that
  names it.
* Row numbers are the key if there is no other. A VACUUM by another program between the SELECT and
  the UPDATE can change them; a PRIMARY KEY prevents that.

Used by `database_interface.open_database`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from elasticdl.errors import UnavailableError
from elasticdl.sql.database_interface import BATCH_ROWS, DatabaseError, RowSource, TableInfo
from elasticdl.sql.databases.transaction import GIVEN, BaseDatabase, Transaction
from elasticdl.sql.databases.tuples import TupleColumn, rows_of, tuples_of
from elasticdl.sql.names import literal, matching, parts, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elasticdl.sql.names import Name

_BUSY_TIMEOUT_S = 30.0
_LATER = {"SQLITE_BUSY", "SQLITE_LOCKED"}
_ROWIDS = ("rowid", "_rowid_", "oid")
_CLASSES = ("integer", "real", "text", "blob")


class SQLite(BaseDatabase):
    """A SQLite database; see `database_interface.Database`.

    Args:
        path: File of the database. None: create the database in memory.

    Raises:
        DatabaseError: The file cannot be opened.
    """

    dialect = "sqlite"
    words: ClassVar[Mapping[str, str]] = {
        "bool": "BOOLEAN", "int64": "INTEGER", "uint64": "INTEGER", "double": "REAL",
        "decimal": "NUMERIC", "string": "TEXT", "null": "TEXT", "binary": "BLOB",
        "date32[day]": "DATE", "timestamp": "TIMESTAMP", "timestamp with zone": "TIMESTAMP",
        "time": "TEXT", "list": "TEXT",
    }  # fmt: skip

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._path = None if path == ":memory:" else path
        self.is_in_memory = self._path is None
        self.name = f"sqlite:///{self._path}" if self._path else "sqlite://"
        self._lock = threading.RLock()
        with self._errors():
            self._kept = self._connect() if self.is_in_memory else None
        self.tables()  # rejects a file that is not a SQLite database

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path or ":memory:",
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            message = f"{self.name}: {error}"
            name = getattr(error, "sqlite_errorname", "") or ""
            if any(name.startswith(each) for each in _LATER):
                raise UnavailableError(f"{message}. Another program is writing to it.") from error
            raise DatabaseError(message) from error

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        if self._kept is not None:
            yield self._kept
            return
        with self._errors():
            connection = self._connect()
        try:
            yield connection
        finally:
            self._queries.close(connection.close)

    @contextlib.contextmanager
    def run(self, statement: str) -> Iterator[RowSource | None]:
        """Context manager that runs any statement; yields its rows, or None if it has no result."""
        with (
            self._connected() as connection,
            self._queries.registered(connection.interrupt) as query,
        ):
            with self._errors():
                declared = self._declared(connection, statement)
                # Not a query: it may write, so it must run only once; its result is short.
                if declared is None:
                    cursor = query.wait_for(lambda: connection.execute(statement))
                    rows = query.wait_for(cursor.fetchall)
            if declared is None:
                yield None if cursor.description is None else _short(cursor, rows)
                return
            # The second pass must read exactly what the first one has seen.
            with self._snapshot(connection):
                with self._errors():
                    columns = query.wait_for(lambda: self._columns(connection, statement, declared))
                    reading = query.wait_for(lambda: connection.execute(statement))

                def fetch() -> Sequence[Sequence[Any]]:
                    with self._errors():
                        return query.wait_for(lambda: reading.fetchmany(BATCH_ROWS))

                with contextlib.closing(reading):
                    yield rows_of(columns, fetch, self.name)

    @contextlib.contextmanager
    def _snapshot(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Context manager that opens a read transaction: all reads in it see the same data."""
        with self._errors():
            connection.execute("SAVEPOINT elasticdl_read")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK TO elasticdl_read")
            raise
        finally:
            with self._errors():
                if connection.in_transaction:
                    connection.execute("RELEASE elasticdl_read")

    def _columns(
        self, connection: sqlite3.Connection, select: str, declared: Sequence[tuple[str, str]]
    ) -> list[TupleColumn]:
        """Determine the columns of a query, with types that fit the values in all of its rows.

        Args:
            connection: The connection.
            select: The query, which is run once for this.
            declared: Name and declared type of each column, from `_declared`.
        """
        counts = ", ".join(
            f"total(typeof({column}) = '{kind}')"
            for column in (f"c{i}" for i in range(len(declared)))
            for kind in _CLASSES
        )
        names = ", ".join(f"c{i}" for i in range(len(declared)))
        found = connection.execute(
            f"WITH seen({names}) AS ({select}\n) SELECT {counts} FROM seen"
        ).fetchone()
        size = len(_CLASSES)
        return [
            self._column(
                name, type_, dict(zip(_CLASSES, found[i * size : (i + 1) * size], strict=True))
            )
            for i, (name, type_) in enumerate(declared)
        ]

    def _declared(
        self, connection: sqlite3.Connection, select: str
    ) -> list[tuple[str, str]] | None:
        """Return name and declared type of each column of a query; None if it is not a query."""
        try:
            connection.execute(f"CREATE TEMPORARY VIEW elasticdl_select AS {select}")
        except sqlite3.OperationalError:
            # The statement's own error message is better than one about the view.
            return None
        try:
            # Not from the view, which renames columns with the same name.
            one = connection.execute(f"SELECT * FROM ({select}\n) LIMIT 0")
            names = [column[0] for column in one.description]
            types = _column_of(connection, "PRAGMA temp.table_info(elasticdl_select)", 2)
        finally:
            connection.execute("DROP VIEW temp.elasticdl_select")
        return list(zip(names, types, strict=True))

    def _column(self, name: str, declared: str, counts: Mapping[str, float]) -> TupleColumn:
        held = {kind: int(count) for kind, count in counts.items() if count}
        numbers = held.keys() & {"integer", "real"}
        if (numbers and len(held) > len(numbers)) or {"text", "blob"} <= held.keys():
            shown = ", ".join(f"{kind} in {count:,} rows" for kind, count in held.items())
            raise DatabaseError(
                f"{self.name}: column {name!r} holds values of different types: {shown}. Convert "
                "it in the SELECT: CAST(the_column AS REAL) or CAST(the_column AS TEXT)."
            )
        type_ = declared.upper()
        if "BOOL" in type_ and held.keys() <= {"integer"}:
            return TupleColumn(name, pa.bool_(), _boolean)
        if type_ == "DATE" and held.keys() <= {"text"}:
            return TupleColumn(name, pa.date32(), dt.date.fromisoformat)
        if ("DATE" in type_ or "TIMESTAMP" in type_) and held.keys() <= {"text"}:
            return TupleColumn(name, pa.timestamp("us"), _time)
        if numbers:
            fractions = "real" in held or _has_fractions(type_)
            return TupleColumn(name, pa.float64() if fractions else pa.int64())
        if held:
            return TupleColumn(name, pa.string() if "text" in held else pa.binary())
        return TupleColumn(name, _declared_type(type_))

    def schema(self, select: str) -> pa.Schema:
        """Return the columns of a query without reading a row."""
        with self._connected() as connection, self._errors():
            declared = self._declared(connection, select)
            if declared is None:
                connection.execute(f"SELECT * FROM ({select}\n) LIMIT 0")
                raise DatabaseError(f"{self.name}: this statement returns no rows: {select:.200}")
        return pa.schema(
            pa.field(name, self._column(name, type_, {}).type) for name, type_ in declared
        )

    def table(self, name: Name) -> TableInfo | None:
        """Return a table by its name; None if there is no such table."""
        *schema, table = parts(name)
        if len(schema) > 1:
            return None
        where = schema[0] if schema else "main"
        with self._connected() as connection, self._errors():
            if (
                schema
                and matching(where, _column_of(connection, "PRAGMA database_list", 1)) is None
            ):
                return None
            tables = connection.execute(
                f"SELECT name, type, wr FROM pragma_table_list "
                f"WHERE schema = {literal(where)} COLLATE NOCASE"
            ).fetchall()
            actual = matching(table, [row[0] for row in tables])
            if actual is None:
                return None
            _, kind, is_without_rowid = next(row for row in tables if row[0] == actual)
            at = f"{literal(actual)}, {literal(where)}"
            columns = connection.execute(
                f'SELECT name, type, "notnull", pk FROM pragma_table_xinfo({at})'
            ).fetchall()
            generated = _column_of(
                connection, f"SELECT name FROM pragma_table_xinfo({at}) WHERE hidden IN (2, 3)"
            )
            full, types = (where, actual), {row[0]: row[1] for row in columns}
            if kind == "view":
                why_not = f"{shown(name)} is a view, and the rows of a view have no row numbers"
                (definition,) = _column_of(
                    connection,
                    f"SELECT sql FROM {self.quote((where,))}.sqlite_schema "
                    f"WHERE type = 'view' AND name = {literal(actual)}",
                )
                return TableInfo(full, types, (), why_not, definition=definition)
            key = _key(connection, at, columns, is_without_rowid=bool(is_without_rowid))
        if not key:
            folded = {column.lower() for column in types}
            key = [each for each in _ROWIDS if each not in folded][:1]
        if not key or (is_without_rowid and key[0] not in types):
            return TableInfo(
                full,
                types,
                (),
                f"{shown(name)} has no PRIMARY KEY, and its row numbers are hidden by "
                "columns called rowid, _rowid_ and oid",
                generated=generated,
            )
        # Keys are compared as stored, not as times.
        casts = {
            each: "TEXT"
            for each in key
            if "DATE" in types.get(each, "").upper() or "TIME" in types.get(each, "").upper()
        }
        return TableInfo(full, types, key, casts=casts, generated=generated)

    def tables(self) -> Sequence[str]:
        """Return the names of all tables."""
        with self._connected() as connection, self._errors():
            return _column_of(
                connection,
                "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') "
                "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY 1",
            )

    def schemas(self) -> Sequence[str]:
        """Return the names of the schemas: `main` (the database file), attached files, `temp`."""
        with self._connected() as connection, self._errors():
            return [*_column_of(connection, "PRAGMA database_list", 1), "temp"]

    def _key(self, key: str, type_: str | None) -> str:  # noqa: ARG002 - for other databases
        """Return the SQL for a key column of the temporary table; see `BaseDatabase._key`.

        It is never cast: the temporary table keeps the values as they are, like any SQLite table.
        """
        return f"given.{key}"

    @contextlib.contextmanager
    def _begin(self) -> Iterator[Transaction]:
        with self._lock, self._connected() as connection, self._errors():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield _Transaction(connection)
                connection.execute(f"DROP TABLE temp.{GIVEN}")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.close()


def _short(cursor: sqlite3.Cursor, rows: Sequence[Sequence[Any]]) -> RowSource:
    """Convert the result of a statement that is not a query, such as a PRAGMA, to Arrow.

    The type of each column is derived from all of its values.
    """
    names = [column[0] for column in cursor.description]
    values = list(zip(*rows, strict=True)) if rows else [() for _ in names]
    try:
        arrays = [pa.array(column) for column in values]
    except pa.ArrowException:
        arrays = [
            pa.array([None if value is None else str(value) for value in column], pa.string())
            for column in values
        ]
    # Built by position, as columns may share a name here.
    schema = pa.schema(
        pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)
    )
    return RowSource(schema, [pa.RecordBatch.from_arrays(arrays, schema=schema)])


class _Transaction(Transaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def cancel(self) -> None:
        self._connection.interrupt()

    def run(self, statement: str) -> int:
        return max(0, self._connection.execute(statement).rowcount)

    def fetch(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._connection.execute(statement).fetchall()

    def create_given(
        self,
        columns: Mapping[str, str],
        like: Mapping[str, str],  # noqa: ARG002 - for MySQL
        table: str,  # noqa: ARG002 - as `like`
    ) -> None:
        # Without types, so that values are stored unchanged.
        self.run(f"CREATE TEMPORARY TABLE {GIVEN} ({', '.join(columns)})")

    def load(self, rows: RowSource) -> int:
        marks = ", ".join("?" for _ in rows.schema)
        count = 0
        for values in tuples_of(rows, _to_sqlite):
            self._connection.executemany(f"INSERT INTO temp.{GIVEN} VALUES ({marks})", values)
            count += len(values)
        return count


def _key(
    connection: sqlite3.Connection,
    at: str,
    columns: Sequence[tuple[str, str, int, int]],
    *,
    is_without_rowid: bool,
) -> list[str]:
    """Return the columns of a key that identifies each row of a table; empty if there is none.

    Its columns never contain NULL. The PRIMARY KEY is preferred to UNIQUE constraints.

    Args:
        connection: The connection.
        at: Table and schema as arguments of a pragma function, in SQL: `'t', 'main'`.
        columns: Name, type, whether it is NOT NULL, and position in the PRIMARY KEY (0: not in it)
            of each column.
        is_without_rowid: Whether the table is WITHOUT ROWID, where a PRIMARY KEY is never NULL.
    """
    not_null = {name for name, _, is_not_null, _ in columns if is_not_null}
    primary = sorted((pk, name) for name, _, _, pk in columns if pk)
    key = [name for _, name in primary]
    types = {name: type_ for name, type_, _, _ in columns}
    # A historical bug that SQLite keeps: a PRIMARY KEY accepts NULL, except an INTEGER one.
    is_number = len(key) == 1 and types[key[0]].upper() == "INTEGER"
    if key and (is_without_rowid or is_number or not_null >= set(key)):
        return key
    unique = connection.execute(
        f'SELECT name FROM pragma_index_list({at}) WHERE "unique" AND NOT partial ORDER BY seq DESC'
    ).fetchall()
    schema = at.rpartition(", ")[2]
    for (index,) in unique:
        names = _column_of(
            connection,
            f"SELECT name FROM pragma_index_info({literal(index)}, {schema})",
        )
        if all(name is not None for name in names) and not_null >= set(names):
            return names
    return []


def _column_of(connection: sqlite3.Connection, question: str, at: int = 0) -> list[Any]:
    return [row[at] for row in connection.execute(question)]


def _to_sqlite(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    types = pa.types
    if types.is_temporal(column.type):
        return [
            None
            if value is None
            else value.isoformat(*([" "] if types.is_timestamp(column.type) else []))
            for value in values
        ]
    if types.is_list(column.type):
        return [None if value is None else json.dumps(value) for value in values]
    if types.is_decimal(column.type):
        return [None if value is None else _number(value) for value in values]
    return values


def _number(value: decimal.Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _boolean(value: int) -> bool:
    if value not in {0, 1}:
        raise ValueError(f"{value} is neither 0 nor 1.")
    return bool(value)


def _time(value: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(value)
    return found.astimezone(dt.UTC).replace(tzinfo=None) if found.tzinfo else found


def _has_fractions(type_: str) -> bool:
    return any(word in type_ for word in ("REAL", "FLOA", "DOUB", "DEC", "NUMERIC"))


def _declared_type(type_: str) -> pa.DataType:
    """Return the Arrow type for a column that has no values in the result, only a declared type."""
    if _has_fractions(type_):
        return pa.float64()
    if "INT" in type_:
        return pa.int64()
    if any(word in type_ for word in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    # From 3.41 on, SQLite reports BLOB for a column without a type.
    return pa.null()
