"""MySQL and MariaDB through SQLAlchemy and PyMySQL, with a server-side cursor.

Types are converted as in `plain.py`, and:

* TINYINT(1), which is BOOLEAN, and BIT(1) are bool; a value other than 0 and 1 is rejected: to read
  it, write CAST(the_column AS SIGNED) in the SELECT. Longer BITs are integers.
* DECIMAL of more than 38 digits is float64. FLOAT has only the 6 digits that the server sends; to
  read all digits, write the_column * 1e0 in the SELECT.
* TIMESTAMP is UTC: the connection's time zone is +00:00. DATETIME has no zone.
* A column with a TIME beyond a day or below zero, with '0000-00-00' or of a geometric type is
  rejected with an error that names it.

ALTER TABLE and CREATE TABLE commit implicitly. A missing column is therefore added only after
everything else has been checked and loaded, just before the rows are changed, and it is removed
again if the change fails. If the process is killed in between, the column stays, with NULL in every
row. Tables of storage engines without transactions (MyISAM, Aria) are rejected.

Used by `database_interface.open_database`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pymysql  # noqa: F401 - fails here if it is not installed
import sqlalchemy as sa
from pymysql.constants import FIELD_TYPE, FLAG
from sqlalchemy import exc

from elasticdl.sql.database_interface import DatabaseError, RowSource, TableInfo
from elasticdl.sql.databases.sqlalchemy import SQLAlchemyConnection
from elasticdl.sql.databases.transaction import GIVEN, Transaction
from elasticdl.sql.databases.tuples import TupleColumn, tuples_of
from elasticdl.sql.names import column_name, matching, parts, quoted, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elasticdl.sql.names import Name

_OPTIONS = {
    "connect_timeout": 30,
    "init_command": "SET time_zone = '+00:00'",
}
# Too many connections, shutdown, lock wait, deadlock, killed, no server, connection lost.
_LATER = {0, 1040, 1053, 1203, 1205, 1213, 1927, 2002, 2003, 2006, 2013, 2055}
_DUPLICATE_COLUMN = 1060
_BINARY = 63  # the character set number for bytes
_DIGITS = 38
_LOCK_WAIT_S = 50
_SIZES = {
    FIELD_TYPE.TINY: pa.int8(), FIELD_TYPE.SHORT: pa.int16(), FIELD_TYPE.INT24: pa.int32(),
    FIELD_TYPE.LONG: pa.int32(), FIELD_TYPE.LONGLONG: pa.int64(), FIELD_TYPE.YEAR: pa.int16(),
}  # fmt: skip
_UNSIGNED = {
    pa.int8(): pa.uint8(), pa.int16(): pa.uint16(), pa.int32(): pa.uint32(),
    pa.int64(): pa.uint64(),
}  # fmt: skip
_DAY = dt.timedelta(days=1)


class MySQL(SQLAlchemyConnection):
    """A MySQL or MariaDB database; see `database_interface.Database`.

    Args:
        url: `mysql://USER:PASSWORD@HOST:PORT/NAME`; `?unix_socket=PATH` and other options are
            passed to PyMySQL.

    Raises:
        DatabaseError: The server rejects the connection.
        UnavailableError: The server cannot be reached.
    """

    mark = "`"
    words: ClassVar[Mapping[str, str]] = {
        "bool": "BOOLEAN", "int64": "BIGINT", "uint64": "BIGINT UNSIGNED", "double": "DOUBLE",
        "decimal": "DECIMAL({digits},{scale})", "string": "LONGTEXT CHARACTER SET utf8mb4",
        "null": "LONGTEXT CHARACTER SET utf8mb4", "binary": "LONGBLOB", "date32[day]": "DATE",
        "timestamp": "DATETIME(6)", "timestamp with zone": "DATETIME(6)", "time": "TIME(6)",
        "list": "JSON",
    }  # fmt: skip
    ddl_commits = True

    def __init__(self, url: str) -> None:
        super().__init__(re.sub(r"^[\w+]+", "mysql+pymysql", url), _OPTIONS)
        self.name = re.sub(r"^[\w+]+", "mysql", self.name)
        self.dialect = "mysql"

    def _cancel(self, driver: Any) -> None:
        # A second connection, since the first one is busy.
        with self._engine.connect() as other:
            other.exec_driver_sql(f"KILL QUERY {driver.thread_id()}")

    def _is_lost(self, error: Exception) -> bool:
        reason = getattr(error, "orig", error)
        if "Name or service not known" in str(reason):
            return False
        code = _code(error)
        return isinstance(reason, OSError) or (
            isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError)
            and code in _LATER
        )

    def quote(self, name: Name) -> str:
        """Quote the name of a table with backticks, for use in a statement."""
        return quoted(name, self.mark)

    def _abandon(self, connection: sa.Connection, result: sa.CursorResult[Any]) -> None:
        cursor: Any = result.cursor
        if cursor is not None and cursor._result is not None:  # noqa: SLF001
            cursor._result.unbuffered_active = False  # noqa: SLF001
        connection.invalidate()

    def _known_columns(self, result: sa.CursorResult[Any]) -> list[TupleColumn] | None:
        # The standard description lacks signedness and character sets.
        cursor: Any = result.cursor
        if cursor is None or cursor._result is None:  # noqa: SLF001
            return None
        return [self._column(field) for field in cursor._result.fields]  # noqa: SLF001

    def _column(self, field: Any) -> TupleColumn:
        code, name = field.type_code, str(field.name)
        if code in _SIZES:
            found = _SIZES[code]
            if code == FIELD_TYPE.TINY and field.length == 1:
                return TupleColumn(name, pa.bool_(), _boolean)
            is_unsigned = field.flags & FLAG.UNSIGNED and code != FIELD_TYPE.YEAR
            return TupleColumn(name, _UNSIGNED[found] if is_unsigned else found)
        if code in {FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL}:
            is_signed = not field.flags & FLAG.UNSIGNED
            if field.length - bool(field.scale) - is_signed > _DIGITS:
                return TupleColumn(name, pa.float64(), float)
            return TupleColumn(name, pa.decimal128(_DIGITS, field.scale))
        if code == FIELD_TYPE.BIT:
            return _bits(name, field.length)
        if code in _OTHERS:
            return TupleColumn(name, *_OTHERS[code])
        if code == FIELD_TYPE.GEOMETRY:
            raise DatabaseError(
                f"{self.name}: column {name!r} cannot be read: a geometry is neither a number nor "
                "text. Select ST_X(the_column) and ST_Y(the_column)."
            )
        is_bytes = field.charsetnr == _BINARY and code != FIELD_TYPE.JSON
        return TupleColumn(name, pa.binary() if is_bytes else pa.string())

    def _fetch(self, question: str, **values: Any) -> Sequence[Any]:
        with self._connected() as connection, self._errors():
            return connection.execute(sa.text(question), values).fetchall()

    def table(self, name: Name) -> TableInfo | None:
        """Return a table by its name; None if there is no such table."""
        *schema, table = parts(name)
        if len(schema) > 1:
            return None
        known = self._fetch(
            "SELECT table_schema, table_name, table_type, engine FROM information_schema.tables "
            "WHERE table_schema = COALESCE(:schema, DATABASE())",
            schema=schema[0] if schema else None,
        )
        actual = matching(table, [row[1] for row in known])
        if actual is None:
            return None
        where, _, kind, engine = next(row for row in known if row[1] == actual)
        columns = self._fetch(
            "SELECT column_name, column_type, is_nullable, generation_expression <> '' "
            "FROM information_schema.columns "
            "WHERE table_schema = :schema AND table_name = :name ORDER BY ordinal_position",
            schema=where,
            name=actual,
        )
        types = {row[0]: row[1] for row in columns}
        generated = [row[0] for row in columns if row[3]]
        full = (where, actual)
        why_not = self._why_not(shown(name), kind, engine)
        if why_not:
            found = self._fetch(
                "SELECT view_definition FROM information_schema.views "
                "WHERE table_schema = :schema AND table_name = :name",
                schema=where,
                name=actual,
            )
            # NULL without the privilege to see it.
            definition = (found[0][0] or "") if found else ""
            return TableInfo(full, types, (), why_not, definition=definition, generated=generated)
        key = self._key_of(where, actual, {row[0] for row in columns if row[2] == "NO"})
        if not key:
            why_not = (
                f"{shown(name)} has neither a PRIMARY KEY nor a UNIQUE key on columns that are NOT "
                f"NULL. Add one: ALTER TABLE {shown(name)} ADD COLUMN id BIGINT AUTO_INCREMENT "
                "PRIMARY KEY"
            )
        return TableInfo(full, types, key, why_not, generated=generated)

    def _why_not(self, name: str, kind: str, engine: str | None) -> str:
        if "VIEW" in kind:
            return f"{name} is a view, which has no key"
        transactional = self._fetch(
            "SELECT 1 FROM information_schema.engines WHERE engine = :engine "
            "AND transactions = 'YES'",
            engine=engine,
        )
        if transactional:
            return ""
        return (
            f"{name} uses the storage engine {engine}, which does not support transactions, so a "
            f"failed write could not be rolled back. Change the engine: ALTER TABLE {name} "
            "ENGINE=InnoDB"
        )

    def _key_of(self, schema: str, table: str, not_null: set[str]) -> list[str]:
        keys: dict[str, list[str | None]] = {}
        for index, column in self._fetch(
            "SELECT index_name, column_name FROM information_schema.statistics "
            "WHERE table_schema = :schema AND table_name = :name AND non_unique = 0 "
            "ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
            schema=schema,
            name=table,
        ):
            keys.setdefault(index, []).append(column)
        for found in keys.values():
            columns = [column for column in found if column is not None]
            if len(columns) == len(found) and not_null >= set(columns):
                return columns
        return []

    def append(self, table: Name, rows: RowSource) -> int:
        """Append rows to a table by column name; see `Database.append`."""
        info = self.table(table)
        if info is not None and "transactions" in info.why_no_key:
            raise DatabaseError(f"{self.name}: {info.why_no_key}.")
        return super().append(table, rows)

    @contextlib.contextmanager
    def _begin(self) -> Iterator[Transaction]:
        with self._connected() as connection, self._errors():
            driver = connection.connection.driver_connection
            transaction = _Transaction(connection, functools.partial(self._cancel, driver))
            # Reject a value that does not fit, instead of cutting it; and limit waiting.
            transaction.run("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")
            transaction.run(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
            yield transaction
            connection.commit()

    @contextlib.contextmanager
    def _added(
        self, transaction: Transaction, info: TableInfo, missing: Sequence[tuple[str, str]]
    ) -> Iterator[None]:
        table, added = self.quote(info.parts), list[str]()
        try:
            for name, type_ in missing:
                column = column_name(name, self.mark)
                alter = f"ALTER TABLE {table} ADD COLUMN {column} {type_}"
                try:
                    transaction.run(alter)
                except exc.OperationalError as error:
                    # Another program may have added the column first.
                    if _code(error) != _DUPLICATE_COLUMN or self._still_missing(info, missing):
                        raise
                else:
                    added.append(column)
            yield
            transaction.run("COMMIT")
        except BaseException:
            # The connection may be lost.
            with contextlib.suppress(exc.SQLAlchemyError, OSError):
                transaction.run("ROLLBACK")
                for column in added:
                    # Keep the column if another program has filled it in the meantime.
                    if not transaction.fetch(
                        f"SELECT 1 FROM {table} WHERE {column} IS NOT NULL LIMIT 1"
                    ):
                        transaction.run(f"ALTER TABLE {table} DROP COLUMN {column}")
            raise

    def _update(
        self, info: TableInfo, keys: Mapping[str, str], values: Mapping[str, str], part: str
    ) -> str:
        changes = ", ".join(
            f"filled.{column_name(name, self.mark)} = given.{value}"
            for name, value in values.items()
        )
        return (
            f"UPDATE {self.quote(info.parts)} AS filled JOIN {part} AS given "
            f"ON {self._match(info, keys)} SET {changes}"
        )

    def _key(self, key: str, type_: str | None) -> str:  # noqa: ARG002 - for other databases
        """Return the SQL for a key column of the temporary table; see `BaseDatabase._key`.

        It is never cast: the temporary table was created with the type of the target's column.
        """
        return f"given.{key}"

    def _create(
        self,
        transaction: Transaction,
        table: str,
        columns: Mapping[str, str],
        values: Sequence[str],
    ) -> int:
        """Create a table with the rows of the temporary table; see `BaseDatabase._create`.

        This takes a single statement, since CREATE TABLE alone would commit an empty table.
        """
        made = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        selected = ", ".join(
            f"{value} AS {name}" for value, name in zip(values, columns, strict=True)
        )
        return transaction.run(
            f"CREATE TABLE {table} ({made}) ENGINE=InnoDB SELECT {selected} FROM {GIVEN}"
        )


class _Transaction(Transaction):
    def __init__(self, connection: sa.Connection, cancel: Callable[[], None]) -> None:
        self._connection, self._cancel = connection, cancel

    def cancel(self) -> None:
        self._cancel()

    def run(self, statement: str) -> int:
        plain = self._connection.execution_options(no_parameters=True)
        return max(0, plain.exec_driver_sql(statement).rowcount)

    def fetch(self, statement: str) -> Sequence[Sequence[Any]]:
        plain = self._connection.execution_options(no_parameters=True)
        return plain.exec_driver_sql(statement).fetchall()

    def create_given(self, columns: Mapping[str, str], like: Mapping[str, str], table: str) -> None:
        made = ", ".join(f"{name} {type_}" for name, type_ in columns.items() if name not in like)
        # Created by SELECT, because the type of a string column includes its collation.
        selected = ", ".join(f"{column_name(key, '`')} AS {name}" for name, key in like.items())
        source = f" SELECT {selected} FROM {table} LIMIT 0" if like else ""
        self.run(f"CREATE TEMPORARY TABLE {GIVEN} ({made}) ENGINE=InnoDB{source}")

    def load(self, rows: RowSource) -> int:
        names = ", ".join(rows.schema.names)
        marks = ", ".join("%s" for _ in rows.schema)
        statement = f"INSERT INTO {GIVEN} ({names}) VALUES ({marks})"
        count = 0
        connection = self._connection.execution_options(no_parameters=False)
        for values in tuples_of(rows, _to_mysql):
            if values:
                connection.exec_driver_sql(statement, values)
            count += len(values)
        return count


def _code(error: Exception) -> int | None:
    """Return MySQL's number of an error, such as 1060 for a duplicate column; None if unknown."""
    reason = getattr(error, "orig", error)
    return reason.args[0] if reason.args else None


def _to_mysql(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_list(column.type):
        return [None if value is None else json.dumps(value) for value in values]
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return [None if value is None else value.replace(tzinfo=None) for value in values]
    return values


def _bits(name: str, length: int) -> TupleColumn:
    if length == 1:
        return TupleColumn(name, pa.bool_(), lambda value: _boolean(int.from_bytes(value)))
    return TupleColumn(name, pa.uint64(), int.from_bytes)


def _boolean(value: int) -> bool:
    if value not in {0, 1}:
        raise ValueError(f"{value} is neither 0 nor 1.")
    return bool(value)


def _date(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not a date.")  # noqa: TRY004 - a wrong value
    return value


def _utc(value: Any) -> dt.datetime:
    found: dt.datetime = _date(value)
    return found.replace(tzinfo=dt.UTC)


def _time_of_day(value: dt.timedelta) -> dt.time:
    if not dt.timedelta() <= value < _DAY:
        raise ValueError(f"{value} is not a time of day; select TIME_TO_SEC(the_column).")
    return (dt.datetime(1970, 1, 1) + value).time()  # noqa: DTZ001 - only the time is used


_OTHERS: dict[int, tuple[pa.DataType, Callable[[Any], Any] | None]] = {
    FIELD_TYPE.FLOAT: (pa.float32(), None),
    FIELD_TYPE.DOUBLE: (pa.float64(), None),
    FIELD_TYPE.DATE: (pa.date32(), _date),
    FIELD_TYPE.NEWDATE: (pa.date32(), _date),
    FIELD_TYPE.DATETIME: (pa.timestamp("us"), _date),
    FIELD_TYPE.TIMESTAMP: (pa.timestamp("us", tz="UTC"), _utc),
    FIELD_TYPE.TIME: (pa.time64("us"), _time_of_day),
    FIELD_TYPE.NULL: (pa.null(), None),
}
