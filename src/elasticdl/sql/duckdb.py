"""DuckDB, the embedded default: a file, or Parquet and CSV files read in place.

Its own row numbers (`rowid`) identify the rows of every table: no other process can write to the
file while it is open here, so they stay the same from the SELECT to the UPDATE.

Used by `database.py`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Self

import duckdb
import pyarrow as pa

from elasticdl.garbage import collect_at_exit
from elasticdl.sql.database import BATCH_ROWS, DatabaseError, Rows, TableInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

# Set for statements of others (`elasticdl sql-server`), which may read and write no files.
NO_FILES = "ELASTICDL_DATABASE_WITHOUT_FILES"

_ROWID = "rowid"
_GIVEN = "elasticdl_rows"


class DuckDB:
    """A DuckDB database; see `database.Database`.

    Args:
        path: Its file; None keeps it in memory.

    Raises:
        DatabaseError: It cannot be opened.
    """

    dialect = "duckdb"

    def __init__(self, path: str | None) -> None:
        self.name = f"duckdb:///{path}" if path else "duckdb://"
        self.is_in_memory = path is None
        collect_at_exit()
        self._running: Any = None
        config: Any = {"enable_external_access": "false"} if os.environ.get(NO_FILES) else {}
        with self._errors():
            self._connection = duckdb.connect(path or ":memory:", config=config)

    def interrupt(self) -> None:
        """End the query that another thread runs here with a `DatabaseError`."""
        running = self._running
        if running is not None:
            running.interrupt()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            # What DuckDB makes of Ctrl-C.
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from error
            raise
        except duckdb.Error as error:
            raise DatabaseError(f"{self.name}: {str(error).strip()}") from error

    def quote(self, name: str) -> str:
        """See `Database`."""
        return quoted(name)

    @contextlib.contextmanager
    def read(self, select: str) -> Iterator[Rows]:
        """See `Database`."""
        with self.run(select) as rows:
            if rows is None:
                raise DatabaseError(f"{self.name}: this statement returns no rows: {select:.200}")
            yield rows

    def schema(self, select: str) -> pa.Schema:
        """See `Database`."""
        with self.read(f"SELECT * FROM ({select}\n) LIMIT 0") as rows:  # noqa: S608 - the user's own
            return rows.schema

    @contextlib.contextmanager
    def run(self, statement: str) -> Iterator[Rows | None]:
        """See `Database`."""
        with contextlib.closing(self._connection.cursor()) as cursor, self._interruptible(cursor):
            with self._errors():
                # None for what has no result, whatever its stubs say.
                relation: Any = cursor.sql(statement)
                reader = None if relation is None else relation.to_arrow_reader(BATCH_ROWS)
            if reader is None:
                yield None
                return
            yield Rows(_plain_schema(reader.schema), self._batches(reader))

    @contextlib.contextmanager
    def _interruptible(self, cursor: Any) -> Iterator[None]:
        self._running = cursor
        try:
            yield
        finally:
            self._running = None

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        schema = _plain_schema(reader.schema)
        while True:
            with self._errors():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                except pa.ArrowException as error:
                    raise DatabaseError(f"{self.name}: {error}") from error
            yield batch.cast(schema)

    def table(self, name: str) -> TableInfo | None:
        """See `Database`."""
        with contextlib.closing(self._connection.cursor()) as cursor:
            try:
                cursor.execute(f"DESCRIBE {quoted(name)}")
            except duckdb.CatalogException:
                return None
            except duckdb.Error as error:
                raise DatabaseError(f"{self.name}: {error}") from error
            columns = {row[0]: row[1] for row in cursor.fetchall()}
            try:
                cursor.execute(f"SELECT {_ROWID} FROM {quoted(name)} LIMIT 0")  # noqa: S608 - quoted
            except duckdb.Error:
                return TableInfo(columns, (), f"{name} is a view, whose rows have no numbers.")
            return TableInfo(columns, (_ROWID,))

    def tables(self) -> Sequence[str]:
        """See `Database`."""
        with self._errors(), contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables ORDER BY 1")
            return [row[0] for row in cursor.fetchall()]

    def fill(self, table: str, column: str, rows: Rows) -> int:
        """See `Database`."""
        key, value = (quoted(name) for name in rows.schema.names)
        with self._transaction(rows) as cursor:
            filled = self.table(table)
            if filled is not None and column not in filled.columns:
                given = cursor.execute(f"SELECT typeof({value}) FROM {_GIVEN} LIMIT 1").fetchone()  # noqa: S608
                cursor.execute(
                    f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(column)} {given[0]}"
                )
            changed = cursor.execute(
                f"UPDATE {quoted(table)} AS filled SET {quoted(column)} = given.{value} "  # noqa: S608
                f"FROM {_GIVEN} AS given WHERE filled.{_ROWID} = given.{key}"
            ).fetchone()
        return int(changed[0])

    def append(self, table: str, rows: Rows) -> int:
        """See `Database`."""
        names = ", ".join(quoted(name) for name in rows.schema.names)
        with self._transaction(rows) as cursor:
            if self.table(table) is None:
                made = cursor.execute(f"CREATE TABLE {quoted(table)} AS SELECT * FROM {_GIVEN}")  # noqa: S608
            else:
                made = cursor.execute(
                    f"INSERT INTO {quoted(table)} ({names}) SELECT {names} FROM {_GIVEN}"  # noqa: S608
                )
            count = made.fetchone()
        return int(count[0]) if count else 0

    @contextlib.contextmanager
    def _transaction(self, rows: Rows) -> Iterator[Any]:
        """Yield a cursor in a transaction, in which the rows are a temporary table."""
        with self._errors(), contextlib.closing(self._connection.cursor()) as cursor:
            reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows.batches))
            cursor.register("elasticdl_reader", reader)
            cursor.execute("BEGIN TRANSACTION")
            try:
                # A reader can be read once only.
                cursor.execute(f"CREATE TEMPORARY TABLE {_GIVEN} AS SELECT * FROM elasticdl_reader")  # noqa: S608 - quoted
                yield cursor
                cursor.execute(f"DROP TABLE {_GIVEN}")
                cursor.execute("COMMIT")
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            finally:
                cursor.unregister("elasticdl_reader")

    def close(self) -> None:
        """See `Database`."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def quoted(name: str) -> str:
    """Return a name, which may be qualified by dots, as SQL.

    Example:
        >>> quoted("main.employee")
        '"main"."employee"'
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose types other parts can store: a dictionary becomes its values."""
    return pa.schema(
        pa.field(
            field.name,
            field.type.value_type if pa.types.is_dictionary(field.type) else field.type,
        )
        for field in schema
    )
