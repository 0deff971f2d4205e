"""SQLAlchemy databases: support for any database with a SQLAlchemy driver.

Types are converted as in `plain.py`, as far as the driver reports them. Otherwise the type of a
column is that of its values in the first rows (32768). A later value of another type is rejected
with an error that names the column: CAST(the_column AS ...) in the SELECT then helps.

`fill` updates row by row in one transaction, because temporary tables differ too much between
databases; it is slow for millions of rows. Where ALTER TABLE or CREATE TABLE commits implicitly
(Oracle, for example), a failure may leave an empty column or table behind.

Used by `database_interface.open_database`; `mysql.py` extends it for its database.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool, StaticPool

from elasticdl.data.type_words import in_words
from elasticdl.errors import UnavailableError, UsageError
from elasticdl.job import without_password
from elasticdl.sql.database_interface import (
    BATCH_ROWS,
    DatabaseError,
    RowSource,
    TableInfo,
    unknown_kind,
)
from elasticdl.sql.databases.plain import to_write
from elasticdl.sql.databases.transaction import BaseDatabase, Transaction, is_query, watched
from elasticdl.sql.databases.tuples import TupleColumn, rows_of, tuples_of
from elasticdl.sql.names import matching, parts, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from elasticdl.sql.databases.queries import DatabaseQuery
    from elasticdl.sql.names import Name

# sqlglot's names where they differ from SQLAlchemy's.
_DIALECTS = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "tsql", "awsathena": "athena"}
_LOST = re.compile(
    r"(?i)refused|timed? ?out|unreachable|temporary failure|gone away|lost connection|is locked"
)
_SQL_TYPES: dict[str, Any] = {
    "bool": sa.Boolean, "int64": sa.BigInteger, "uint64": sa.Numeric(20), "double": sa.Double,
    "string": sa.Text, "null": sa.Text, "binary": sa.LargeBinary, "date32[day]": sa.Date,
}  # fmt: skip


# Queries run in separate threads; see `queries.py`.
_OPTIONS = {name: {"check_same_thread": False} for name in ("sqlite", "sqlite+pysqlite")}


class SQLAlchemyConnection(BaseDatabase):
    """Base class of the databases that are accessed through SQLAlchemy; implements reading.

    Args:
        url: In the syntax of SQLAlchemy.
        options: Options for the driver.

    Raises:
        UsageError: The URL is invalid.
        DatabaseError: The database rejects the connection.
        UnavailableError: The database cannot be reached.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        try:
            address = sa.make_url(url)
            self.is_in_memory = address.get_backend_name() == "sqlite" and address.database in {
                None, "", ":memory:",
            }  # fmt: skip
            self._engine = sa.create_engine(
                address,
                connect_args={**(options or {}), **_OPTIONS.get(address.drivername, {})},
                # Each reader needs its own connection, and closing a connection ends its query.
                poolclass=StaticPool if self.is_in_memory else NullPool,
            )
        except exc.NoSuchModuleError:
            raise unknown_kind(url) from None
        except (exc.ArgumentError, ValueError) as error:
            raise UsageError(f"--database={without_password(url)}: {error}") from None
        self.name = without_password(url)
        self._password = str(address.password or "")
        self.dialect = _DIALECTS.get(self._engine.dialect.name, self._engine.dialect.name)
        with self._connected():
            pass

    def quote(self, name: Name) -> str:
        """Quote the name of a table by the rules of the database, for use in a statement."""
        marks = self._engine.dialect.identifier_preparer
        return ".".join(
            f"{marks.initial_quote}{part.replace(marks.final_quote, marks.final_quote * 2)}"
            f"{marks.final_quote}"
            for part in parts(name)
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> Exception:
        reason = error.orig if isinstance(error, exc.DBAPIError) else error
        given: tuple[Any, ...] = getattr(reason, "args", ())
        # MySQL drivers raise errors with the server's number and message.
        is_numbered = len(given) == 2 and isinstance(given[0], int)  # noqa: PLR2004 - these two
        text = (f"{given[1]} ({given[0]})" if is_numbered else str(reason)).strip()
        if self._password:
            text = text.replace(self._password, "***")
        text = f"{self.name}: {without_password(text)}"
        return UnavailableError(text) if self._is_lost(error) else DatabaseError(text)

    def _is_lost(self, error: Exception) -> bool:
        """Return whether an error is temporary, such as a lost connection: a retry may succeed."""
        if isinstance(error, exc.OperationalError):
            return error.connection_invalidated or bool(_LOST.search(str(error.orig)))
        return isinstance(error, OSError) or getattr(error, "connection_invalidated", False)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        with self._errors():
            connection = self._engine.connect()
        try:
            yield connection
        finally:
            # The connection may be lost.
            with contextlib.suppress(exc.SQLAlchemyError, OSError):
                self._queries.close(connection.close)

    @contextlib.contextmanager
    def _query(self, connection: sa.Connection) -> Iterator[DatabaseQuery]:
        cancel = functools.partial(self._cancel, connection.connection.driver_connection)
        with self._queries.registered(cancel) as query:
            yield query

    def _cancel(self, driver: Any) -> None:
        """Cancel the statement that a connection is running, if the driver supports it."""
        # "cancel" for psycopg and Oracle's driver, "interrupt" for SQLite's and DuckDB's.
        for name in ("cancel", "interrupt"):
            cancel = getattr(driver, name, None)
            if cancel is not None:
                cancel()
                return

    @contextlib.contextmanager
    def run(self, statement: str) -> Iterator[RowSource | None]:
        """Context manager that runs any statement; yields its rows, or None if it has no result."""
        # no_parameters: a percent sign in the statement is not a placeholder.
        options: dict[str, Any] = {"stream_results": True, "no_parameters": True}
        with self._connected() as connection, self._query(connection) as query:
            with self._errors():
                prepared = connection.execution_options(**options)
                result = query.wait_for(lambda: prepared.exec_driver_sql(statement))
            reading = _Reading(result, self._errors, query)
            try:
                # Before reading: a fully read result has no cursor left to inspect.
                columns = self._known_columns(result) if result.returns_rows else None
                if not result.returns_rows or not is_query(statement):
                    # INSERT ... RETURNING, for example.
                    reading.read_all()
                    with self._errors():
                        connection.commit()
                if not result.returns_rows:
                    yield None
                    return
                if columns is None:
                    columns = _columns_of(list(result.keys()), reading.peek())
                yield rows_of(columns, reading.fetch, self.name)
            finally:
                is_open = not reading.is_at_end and query.abandoned is None
                if is_open and not self.is_in_memory:
                    with contextlib.suppress(exc.SQLAlchemyError, OSError):
                        self._abandon(connection, result)

    def _abandon(
        self,
        connection: sa.Connection,
        result: sa.CursorResult[Any],  # noqa: ARG002 - for MySQL
    ) -> None:
        """Drop a connection whose result has not been read to its end.

        Closing it in the ordinary way would make some drivers fetch the remaining rows first.
        """
        connection.invalidate()

    def _known_columns(
        self,
        result: sa.CursorResult[Any],  # noqa: ARG002 - for MySQL
    ) -> list[TupleColumn] | None:
        """Return a result's columns with the types that the driver reports; None if unknown.

        This base class always returns None: the types are then derived from the first rows.
        `mysql.py` overrides the method.
        """
        return None

    def table(self, name: Name) -> TableInfo | None:
        """Return a table by its name; None if there is no such table."""
        *schema, table = parts(name)
        if len(schema) > 1:
            return None
        with self._connected() as connection, self._errors():
            inspector = sa.inspect(connection)
            where = schema[0] if schema else None
            if where is not None and where not in inspector.get_schema_names():
                return None
            known = [*inspector.get_table_names(where), *inspector.get_view_names(where)]
            actual = matching(table, known)
            if actual is None:
                return None
            columns = inspector.get_columns(actual, where)
            types = {c["name"]: _type_text(c["type"], self._engine.dialect) for c in columns}
            generated = [c["name"] for c in columns if c.get("computed")]
            full = (*schema, actual)
            definition = ""
            if actual in inspector.get_view_names(where):
                with contextlib.suppress(NotImplementedError):
                    definition = inspector.get_view_definition(actual, where) or ""
            not_null = {c["name"] for c in columns if not c["nullable"]}
            primary = inspector.get_pk_constraint(actual, where).get("constrained_columns", [])
            not_null |= set(primary)  # SQLite does not report this
            keys = [list(primary)]
            with contextlib.suppress(NotImplementedError):
                keys += [
                    [str(name) for name in unique["column_names"]]
                    for unique in inspector.get_unique_constraints(actual, where)
                ]
        for key in keys:
            if key and not_null >= set(key):
                return TableInfo(full, types, key, generated=generated)
        return TableInfo(
            full,
            types,
            (),
            f"{shown(name)} has neither a PRIMARY KEY nor a UNIQUE constraint on columns that are "
            f"NOT NULL. Add one: ALTER TABLE {shown(name)} ADD PRIMARY KEY (...)",
            definition=definition,
            generated=generated,
        )

    def tables(self) -> Sequence[str]:
        """Return the names of all tables."""
        with self._connected() as connection, self._errors():
            inspector = sa.inspect(connection)
            return sorted([*inspector.get_table_names(), *inspector.get_view_names()])

    def schemas(self) -> Sequence[str]:
        """Return the names of all schemas."""
        with self._connected() as connection, self._errors():
            return sa.inspect(connection).get_schema_names()

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()


class SQLAlchemyDatabase(SQLAlchemyConnection):
    """Any database with a SQLAlchemy driver but no module of its own in this folder."""

    words: ClassVar[Mapping[str, str]] = {}

    def _begin(self) -> AbstractContextManager[Transaction]:
        raise NotImplementedError  # `fill` and `append` use `_writing`

    @contextlib.contextmanager
    def _writing(self, rows: RowSource) -> Iterator[tuple[RowSource, sa.Connection, DatabaseQuery]]:
        with (
            watched(rows) as watched_rows,
            self._connected() as connection,
            self._errors(),
            self._query(connection) as query,
        ):
            yield watched_rows, connection, query
            connection.commit()

    def fill(self, table: Name, key: Sequence[str], rows: RowSource) -> int:
        """Set columns of a table's rows, matched by key; see `Database.fill`."""
        info = self._known(table)
        rows = to_write(rows)
        fields = list(rows.schema)[len(key) :]
        targets = self._targets(info, key, fields)
        names = [target or field.name for field, target in zip(fields, targets, strict=True)]
        filled = _table(info.parts, {name: sa.types.NullType() for name in [*key, *names]})
        match = [filled.c[name] == sa.bindparam(f"key_{i}") for i, name in enumerate(key)]
        statement = (
            sa.update(filled)
            .where(*match)
            .values({name: sa.bindparam(f"value_{i}") for i, name in enumerate(names)})
        )
        exists = sa.select(sa.literal(1)).select_from(filled).where(*match)
        parameters = [f"key_{i}" for i in range(len(key))]
        parameters += [f"value_{i}" for i in range(len(names))]
        seen: set[tuple[Any, ...]] = set()
        with self._writing(rows) as (rows, connection, query):
            for field, target in zip(fields, targets, strict=True):
                if target is None:
                    column = sa.schema.CreateColumn(sa.Column(field.name, _sql_type(field.type)))
                    added = column.compile(dialect=self._engine.dialect)
                    connection.execution_options(no_parameters=True).exec_driver_sql(
                        f"ALTER TABLE {self.quote(info.parts)} ADD {added}"
                    )

            unchanged = 0

            def update(values: list[tuple[Any, ...]]) -> int:
                nonlocal unchanged
                changed = 0
                for row in values:
                    if query.is_cancelled:
                        raise DatabaseError(f"{self.name}: the statement was cancelled.")
                    given = row[: len(key)]
                    if given in seen:
                        raise self._twice(table, ", ".join(str(value) for value in given))
                    seen.add(given)
                    bound = dict(zip(parameters, row, strict=True))
                    with self._filling(info, names):
                        done = connection.execute(statement, bound)
                    changed += max(0, done.rowcount)
                    if done.rowcount == 0:
                        is_there = connection.execute(exists, dict(list(bound.items())[: len(key)]))
                        unchanged += is_there.first() is not None
                return changed

            count = sum(
                query.wait_for(functools.partial(update, values))
                for values in tuples_of(rows, pa.Array.to_pylist)
            )
            if unchanged:
                raise self._unchanged(table, unchanged)
            return count

    def append(self, table: Name, rows: RowSource) -> int:
        """Append rows to a table by column name; see `Database.append`."""
        rows = to_write(rows)
        info = self.table(table)
        names = list(rows.schema.names) if info is None else self._appended(info, rows)
        count = 0
        types = dict(zip(names, map(_sql_type, rows.schema.types), strict=True))
        into = _table(table if info is None else info.parts, types)
        with self._writing(rows) as (rows, connection, query):
            if info is None:
                into.create(connection)
            for values in tuples_of(rows, pa.Array.to_pylist):
                records = [dict(zip(names, row, strict=True)) for row in values]
                inserted = functools.partial(connection.execute, sa.insert(into), records)
                query.wait_for(inserted)
                count += len(records)
        return count


class _Reading:
    """Reader of a query's result: fetches rows batch by batch, with calls that can be cancelled.

    Args:
        result: The result.
        errors: Function () -> context manager that converts the driver's errors to `DatabaseError`
            and others.
        query: The query, through which the driver's calls are made so that they can be cancelled.
    """

    def __init__(
        self,
        result: sa.CursorResult[Any],
        errors: Callable[[], AbstractContextManager[None]],
        query: DatabaseQuery,
    ) -> None:
        self._result, self._errors, self._query = result, errors, query
        self._ahead: list[Sequence[Any]] = []
        self.is_at_end = not result.returns_rows

    def fetch(self) -> Sequence[Any]:
        """Fetch and return the next rows; empty at the end."""
        if self._ahead:
            return self._ahead.pop()
        if self.is_at_end:
            return ()
        with self._errors():
            rows = self._query.wait_for(lambda: self._result.fetchmany(BATCH_ROWS))
        self.is_at_end = not rows
        return rows

    def peek(self) -> Sequence[Any]:
        """Return the rows that the next `fetch` will return, to derive the columns' types first."""
        rows = self.fetch()
        if rows:
            self._ahead.append(rows)
        return rows

    def read_all(self) -> None:
        """Fetch all rows into memory, so that `run` can commit before they are used."""
        if not self.is_at_end:
            with self._errors():
                rows = self._query.wait_for(self._result.fetchall)
            self.is_at_end = True
            if rows:
                self._ahead.append(rows)


def _columns_of(names: Sequence[str], rows: Sequence[Any]) -> list[TupleColumn]:
    """Derive the columns' types from the values in the first rows."""
    columns = []
    for i, name in enumerate(names):
        values = [row[i] for row in rows]
        try:
            found = pa.array(values).type
        except pa.ArrowException:
            found = pa.string()
        if pa.types.is_decimal(found):
            found = pa.decimal128(max(38, found.precision), found.scale)
        columns.append(TupleColumn(name, found))
    return columns


def _table(name: Name, columns: Mapping[str, Any]) -> sa.Table:
    *schema, table = parts(name)
    quoted = sa.sql.quoted_name
    # Without quoting, a dialect may split the name of a schema at its dots.
    quote = True if len(schema) == 1 and "." in schema[0] else None
    return sa.Table(
        quoted(table, quote=True),
        sa.MetaData(),
        *(sa.Column(quoted(each, quote=True), type_) for each, type_ in columns.items()),
        schema=quoted(".".join(schema), quote=quote) if schema else None,
    )


def _sql_type(found: pa.DataType) -> Any:
    if pa.types.is_decimal(found):
        return sa.Numeric(found.precision, found.scale)
    if pa.types.is_timestamp(found):
        return sa.DateTime(timezone=found.tz is not None)
    if pa.types.is_time(found):
        return sa.Time
    if pa.types.is_list(found):
        return sa.JSON
    if str(found) not in _SQL_TYPES:
        raise UsageError(
            f"Columns of {in_words(found)} cannot be written to a table of this database."
        )
    return _SQL_TYPES[str(found)]


def _type_text(type_: Any, dialect: Any) -> str:
    try:
        return str(type_.compile(dialect=dialect))
    except exc.CompileError:
        return str(type_)
