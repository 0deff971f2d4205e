"""PostgreSQL through ADBC: binary COPY in both directions, Arrow from end to end.

Types are converted as in `plain.py`, and:

* NUMERIC(p, s) is an exact decimal, and NaN in it is rejected. NUMERIC without digits is float64.
* CHAR(n) loses its trailing spaces, which have no meaning in SQL.
* Arrays with several dimensions become one list, row by row.
* Types added by an extension are rejected, except enumerations; so are money, bit, inet, oid,
  geometric types, ranges and composite types: write CAST(the_column AS text) in the SELECT.
* The name of a table is looked up as written. If it is not found, it is looked up in lower case, to
  which PostgreSQL converts names without quotes.

Used by `database_interface.open_database`.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as postgresql
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.errors import UnavailableError
from elasticdl.job import without_password
from elasticdl.sql.database_interface import DatabaseError, RowSource, TableInfo
from elasticdl.sql.databases.plain import UnreadableTypeError, as_decimal, plain_rows, plain_type
from elasticdl.sql.databases.transaction import GIVEN, BaseDatabase, Transaction, is_query
from elasticdl.sql.names import column_name, literal, parts, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elasticdl.sql.databases.plain import Plain
    from elasticdl.sql.databases.queries import DatabaseQuery
    from elasticdl.sql.names import Name

# With these settings, a server that vanished is detected after two minutes.
_CONNECTION = {
    "application_name": "elasticdl",
    "connect_timeout": "30",
    "keepalives_idle": "60",
    "keepalives_interval": "10",
    "keepalives_count": "6",
}
# Lost connection, shutdown, too many connections, deadlock, serialization failure, lock.
_LATER = re.compile(r"08(?!P01)...|57P0[1-5]|53300|40001|40P01|55P03")
_LOST = re.compile(
    r"server closed the connection|connection to server|no connection to the server"
    r"|could not connect|Connection refused|SSL connection has been closed|timeout expired"
    r"|could not receive data from server|could not send data to server"
    r"|Temporary failure in name resolution|terminating connection"
)
_NEVER = re.compile(
    r"FATAL:  (?!the database system is|sorry, too many|remaining connection|terminating)"
    r"|Name or service not known|canceling statement due to (user request|statement timeout)"
)
# Text that the driver adds before and after the server's message.
_REPEATED = re.compile(
    r"^\w+: (?:\[libpq\] )?Failed to (?:prepare|execute) query(?: '.*?')?: (?=ERROR|FATAL)"
    r"|\n\. SQLSTATE: \w+$",
    re.DOTALL,
)
_EXACT = re.compile(
    r"smallint|integer|bigint|text|character varying|uuid|date|timestamp|bytea|boolean"
    r"|double precision|real"
)
_OPAQUE_SIZE = 4
_AS_TEXT = {"citext", "xml"}
_REFUSED = {"money", "oid"}
_INTERNAL = ("pg_catalog", "information_schema")


class PostgreSQL(BaseDatabase):
    """A PostgreSQL database; see `database_interface.Database`.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/NAME?OPTIONS`, in the syntax of libpq.

    Raises:
        DatabaseError: The server rejects the connection.
        UnavailableError: The server cannot be reached.
    """

    dialect = "postgres"
    words: ClassVar[Mapping[str, str]] = {
        "bool": "boolean", "int64": "bigint", "uint64": "numeric(20)", "double": "double precision",
        "decimal": "numeric({digits},{scale})", "string": "text", "null": "text",
        "binary": "bytea", "date32[day]": "date", "timestamp": "timestamp",
        "timestamp with zone": "timestamptz", "time": "time", "list": "{item}[]",
    }  # fmt: skip

    def __init__(self, url: str) -> None:
        super().__init__()
        address = urlsplit(url)
        options = dict(parse_qsl(address.query, keep_blank_values=True))
        self._url = urlunsplit(address._replace(query=urlencode({**_CONNECTION, **options})))
        self._passwords = [word for word in (address.password, options.get("password")) if word]
        self.name = without_password(url)
        with self._connected():
            pass

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (adbc_driver_manager.Error, OSError) as error:
            raise self._error(error) from None

    def _error(self, error: BaseException) -> Exception:
        text = str(error).strip()
        for password in self._passwords:
            text = text.replace(password, "***")
        # The driver repeats the query, which can be long.
        text = _REPEATED.sub("", without_password(text).partition("\n\nQuery was:")[0]).strip()
        state = getattr(error, "sqlstate", None) or ""
        lost = isinstance(error, OSError) or bool(_LOST.search(text))
        io = getattr(error, "status_code", None) == adbc_driver_manager.AdbcStatusCode.IO
        if _LATER.fullmatch(state) or (not state and (lost or io) and not _NEVER.search(text)):
            return UnavailableError(f"{self.name}: {text}")
        return DatabaseError(f"{self.name}: {text}")

    @contextlib.contextmanager
    def _connected(self, *, autocommit: bool = True) -> Iterator[Any]:
        with self._errors():
            connection = postgresql.connect(self._url, autocommit=autocommit)
        try:
            yield connection
        finally:
            self._close(connection)

    @contextlib.contextmanager
    def _closing(self, cursor: Any) -> Iterator[Any]:
        try:
            yield cursor
        finally:
            self._close(cursor)

    def _close(self, opened: Any) -> None:
        # The connection may be lost, or in the middle of a COPY.
        with contextlib.suppress(adbc_driver_manager.Error, OSError):
            self._queries.close(opened.close)

    def _fetch(self, question: str) -> list[tuple[Any, ...]]:
        with (
            self._connected() as connection,
            self._errors(),
            self._closing(connection.cursor()) as cursor,
            self._queries.registered(cursor.adbc_cancel) as query,
        ):
            query.wait_for(lambda: cursor.execute(question))
            return list(query.wait_for(cursor.fetchall))

    @contextlib.contextmanager
    def run(self, statement: str) -> Iterator[RowSource | None]:
        """Context manager that runs any statement; yields its rows, or None if it has no result."""
        with (
            self._connected() as connection,
            self._closing(connection.cursor()) as cursor,
            self._queries.registered(cursor.adbc_cancel) as query,
        ):
            with self._errors():
                if not is_query(statement):
                    # COPY accepts queries only, not SHOW or EXPLAIN.
                    cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
                # The driver wraps a query in COPY (...): a comment at its end would hide the rest.
                query.wait_for(lambda: cursor.execute(f"{statement}\n"))
                if not cursor.description:
                    yield None
                    return
                reader = query.wait_for(cursor.fetch_record_batch)
            yield plain_rows(reader.schema, self._batches(reader, query), self.name, self._plain)

    def _batches(self, reader: Any, query: DatabaseQuery) -> Iterator[pa.RecordBatch]:
        while True:
            with self._errors():
                try:
                    batch = query.wait_for(lambda: next(reader, None))
                except pa.ArrowException as error:
                    raise self._error(error) from None
            if batch is None:
                return
            yield batch

    def _plain(self, field: pa.Field) -> Plain:
        """Choose the simple type as which a driver's column is read; see `plain.plain_type`."""
        return self._plain_of(field.type, field.metadata or {})

    def _plain_of(self, found: pa.DataType, metadata: Mapping[bytes, bytes]) -> Plain:
        name = metadata.get(b"POSTGRESQL:type", b"").decode()
        if name in _REFUSED:
            raise UnreadableTypeError(f"it is {name}. Select CAST(the_column AS numeric) instead.")
        if name == "bpchar":
            return pa.string(), lambda array: pc.utf8_rtrim(array, " ")
        if isinstance(found, pa.OpaqueType):
            if found.type_name == "numeric":
                decimal, convert = _numeric(metadata.get(b"POSTGRESQL:typmod", b"-1"))
                return decimal, lambda array: convert(array.storage)
            if pa.types.is_binary(found.storage_type) and self._is_text(found.type_name):
                return pa.string(), lambda array: array.storage.cast(pa.string())
            raise UnreadableTypeError(
                f"its type {found.type_name} is not supported. Select CAST(the_column AS text), or "
                "numbers computed from it."
            )
        if pa.types.is_list(found) and isinstance(found.value_type, pa.OpaqueType):
            item, convert = self._plain_of(found.value_type, {})
            return pa.list_(item), lambda array: pa.ListArray.from_arrays(
                array.offsets, convert(array.values), mask=array.is_null()
            )
        return plain_type(found)

    def _is_text(self, type_name: str) -> bool:
        """Return whether values of a type, which the driver reads as bytes, can be used as text.

        This holds for enumerations and citext: PostgreSQL sends their text.
        """
        unnamed = re.fullmatch(r"unnamed<oid:(\d+)>", type_name)
        which = f"oid = {unnamed[1]}" if unnamed else f"typname = {literal(type_name)}"
        found = self._fetch(f"SELECT typtype::text, typname::text FROM pg_type WHERE {which}")
        return bool(found) and all(kind == "e" or name in _AS_TEXT for kind, name in found)

    def table(self, name: Name) -> TableInfo | None:
        """Return a table by its name; None if there is no such table."""
        oid = self._oid(name)
        if oid is None:
            return None
        columns = self._fetch(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, attnum::int, "
            "attgenerated <> '' OR attidentity = 'a' "
            f"FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped "
            "ORDER BY attnum"
        )
        schema, table, kind = self._fetch(
            "SELECT nspname::text, relname::text, relkind::text FROM pg_class "
            f"JOIN pg_namespace n ON n.oid = relnamespace WHERE pg_class.oid = {oid}"
        )[0]
        types = {column[0]: column[1] for column in columns}
        generated = [column[0] for column in columns if column[4]]
        full = (schema, table)
        if kind not in {"r", "p"}:
            what = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}.get(kind)
            why_not = f"{shown(name)} is {what or 'not a table'}, so it has no key"
            found = self._fetch(f"SELECT pg_get_viewdef({oid})") if kind in {"v", "m"} else []
            return TableInfo(full, types, (), why_not, definition=found[0][0] if found else "")
        numbers = {column[3]: (column[0], column[2]) for column in columns}
        for text, num_columns in self._fetch(
            "SELECT indkey::text, indnkeyatts::int FROM pg_index WHERE indisunique AND indisvalid "
            f"AND indpred IS NULL AND indexprs IS NULL AND indimmediate AND indrelid = {oid} "
            "ORDER BY indisprimary DESC, indnkeyatts, indexrelid"
        ):
            key = [numbers.get(int(number)) for number in text.split()[:num_columns]]
            if all(column is not None and column[1] for column in key):
                names = [column[0] for column in key if column is not None]
                casts = {each: "text" for each in names if not _EXACT.match(types[each])}
                return TableInfo(full, types, names, casts=casts, generated=generated)
        return TableInfo(
            full,
            types,
            (),
            f"{shown(name)} has neither a PRIMARY KEY nor a UNIQUE constraint on columns that are "
            f"NOT NULL. Add one: ALTER TABLE {shown(name)} ADD COLUMN id bigserial PRIMARY KEY",
            generated=generated,
        )

    def _oid(self, name: Name) -> int | None:
        as_written = parts(name)
        # With three parts, PostgreSQL would reject it as a name in another database.
        if len(as_written) > 2:  # noqa: PLR2004 - schema and table
            return None
        for each in dict.fromkeys((as_written, tuple(part.lower() for part in as_written))):
            found = self._fetch(f"SELECT to_regclass({literal(self.quote(each))})::oid::bigint")
            if found[0][0] is not None:
                return int(found[0][0])
        return None

    def tables(self) -> Sequence[str]:
        """Return the names of all tables."""
        hidden = ", ".join(literal(name) for name in _INTERNAL)
        found = self._fetch(
            "SELECT CASE WHEN pg_table_is_visible(c.oid) THEN relname::text "
            "ELSE nspname::text || '.' || relname::text END AS name FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE relkind IN ('r', 'p', 'v', 'm', 'f') "
            f"AND nspname NOT IN ({hidden}) AND nspname NOT LIKE 'pg_%' ORDER BY 1"
        )
        return [row[0] for row in found]

    def schemas(self) -> Sequence[str]:
        """Return the names of all schemas, and `pg_temp`."""
        found = self._fetch("SELECT nspname::text FROM pg_namespace ORDER BY 1")
        return [*(row[0] for row in found), "pg_temp"]

    @contextlib.contextmanager
    def _begin(self) -> Iterator[Transaction]:
        with self._connected(autocommit=False) as connection:
            with self._errors(), self._closing(connection.cursor()) as cursor:
                yield _Transaction(cursor)
            with self._errors():
                connection.commit()

    @contextlib.contextmanager
    def _added(
        self, transaction: Transaction, info: TableInfo, missing: Sequence[tuple[str, str]]
    ) -> Iterator[None]:
        for name, type_ in missing:
            added = f"{column_name(name)} {type_}"
            # Waits if another program is adding the same column.
            transaction.run(
                f"ALTER TABLE {self.quote(info.parts)} ADD COLUMN IF NOT EXISTS {added}"
            )
        self._still_missing(info, missing)
        yield

    def close(self) -> None:
        """Do nothing: no connection stays open between statements."""


class _Transaction(Transaction):
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def cancel(self) -> None:
        self._cursor.adbc_cancel()

    def run(self, statement: str) -> int:
        self._cursor.execute(statement)
        return int(self._cursor.rowcount)

    def fetch(self, statement: str) -> Sequence[Sequence[Any]]:
        self._cursor.execute(statement)
        return list(self._cursor.fetchall())

    def create_given(
        self,
        columns: Mapping[str, str],
        like: Mapping[str, str],  # noqa: ARG002 - for MySQL
        table: str,  # noqa: ARG002 - as `like`
    ) -> None:
        made = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        self.run(f"CREATE TEMPORARY TABLE {GIVEN} ({made}) ON COMMIT DROP")

    def load(self, rows: RowSource) -> int:
        reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows.batches))
        count = int(self._cursor.adbc_ingest(GIVEN, reader, mode="append", temporary=True))
        # Otherwise the planner does not know how many rows the table has.
        self.run(f"ANALYZE {GIVEN}")
        return count


def _numeric(typmod: bytes) -> Plain:
    """Choose the type as which a NUMERIC column is read: decimal, or float64 without precision.

    Args:
        typmod: PostgreSQL's type modifier of the column, as text. It encodes precision and scale;
            -1 means that the column has none.

    Returns:
        The Arrow type, and a function that casts an array of strings to it.
    """
    modifier = int(typmod) - _OPAQUE_SIZE
    if modifier < 0:
        return pa.float64(), lambda array: array.cast(pa.float64())
    digits, scale = (modifier >> 16) & 0xFFFF, ((modifier & 0x7FF) ^ 1024) - 1024
    return as_decimal(digits, scale)
