"""Base class of the databases: loads rows into a temporary table, and writes them from there.

    rows --load--> elasticdl_given (temporary) --UPDATE ... FROM--> the table      fill
                                               --INSERT ... SELECT--> the table    append

All steps are one transaction: after any failure, and wherever the process is killed, the database
rolls everything back. Only MySQL's DDL commits implicitly; see `mysql.py`.

Used by the files of the databases.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from elasticdl.data.wording import counted
from elasticdl.sql.column_types import kind_of_column, kind_of_values, why_generated, why_unfit
from elasticdl.sql.database_interface import DatabaseError, RowSource
from elasticdl.sql.databases.plain import to_write, written_type
from elasticdl.sql.databases.queries import Queries
from elasticdl.sql.names import column_name, matching, quoted, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from elasticdl.sql.database_interface import TableInfo
    from elasticdl.sql.databases.queries import DatabaseQuery
    from elasticdl.sql.names import Name

GIVEN = "elasticdl_given"
_QUERY = re.compile(r"(?is)(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(SELECT|WITH|VALUES|TABLE)\b")
# Comments, strings and quoted names, in which a keyword is none.
_NOT_CODE = re.compile(r"""(?s)--[^\n]*|/\*.*?\*/|'[^']*'|"[^"]*"|`[^`]*`""")
_WRITES = re.compile(r"(?i)\b(INSERT|UPDATE|DELETE|MERGE)\b")
_KEY, _VALUE = "elasticdl_key_", "elasticdl_value_"


class Transaction(ABC):
    """An open transaction, with an optional temporary table for the rows to write."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the current statement, from another thread."""

    @abstractmethod
    def run(self, statement: str) -> int:
        """Run a statement; return the number of rows that it matched."""

    @abstractmethod
    def fetch(self, statement: str) -> Sequence[Sequence[Any]]:
        """Run a query with a short result; return its rows."""

    @abstractmethod
    def create_given(self, columns: Mapping[str, str], like: Mapping[str, str], table: str) -> None:
        """Create the temporary table for the rows to write.

        Args:
            columns: Name of each column -> its type.
            like: Which columns hold the key of the target table: column of the temporary table ->
                column of the target table. An implementation may create the former with the type
                of the latter, so that the two can be compared. Empty for `append`.
            table: The target table, as SQL; empty for `append`.
        """

    @abstractmethod
    def load(self, rows: RowSource) -> int:
        """Write rows into the temporary table; return their number."""

    def given_parts(self) -> Sequence[str]:
        """Split the temporary table into parts, so that several UPDATEs can replace a large one.

        Returns:
            Each part as SQL for a FROM clause. No key occurs in two of them.
        """
        return (GIVEN,)


class BaseDatabase(ABC):
    """Base class of the databases; implements writing through a temporary table.

    Attributes:
        mark: Quotation mark for names.
        words: Arrow type -> the database's type, such as `int64` -> `BIGINT`; see
            `plain.written_type`.
        ddl_commits: Whether ALTER TABLE commits the transaction.
    """

    dialect: str
    name: str
    is_in_memory = False
    mark: ClassVar[str] = '"'
    words: ClassVar[Mapping[str, str]]
    ddl_commits: ClassVar[bool] = False

    def __init__(self) -> None:
        self._queries = Queries()

    def interrupt(self) -> None:
        """Cancel all statements that other threads run on this object."""
        self._queries.cancel()

    @abstractmethod
    def run(self, statement: str) -> AbstractContextManager[RowSource | None]:
        """Context manager that runs any statement; yields its rows, or None if it has no result."""

    @abstractmethod
    def table(self, name: Name) -> TableInfo | None:
        """Return a table by its name; None if there is no such table."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Context manager that converts the driver's exceptions to `DatabaseError` and others."""

    @contextlib.contextmanager
    def _filling(self, info: TableInfo, names: Sequence[str]) -> Iterator[None]:
        """Context manager that adds the table's and the columns' names to errors of an UPDATE."""
        try:
            with self._errors():
                yield
        except DatabaseError as error:
            problem = str(error).removeprefix(f"{self.name}: ")
            raise DatabaseError(
                f"{self.name}: {info.name} cannot be filled ({', '.join(names)}): {problem}"
            ) from error

    @abstractmethod
    def _begin(self) -> AbstractContextManager[Transaction]:
        """Context manager that begins a transaction, and commits it; rolls back after an error."""

    @contextlib.contextmanager
    def _cancellable(self) -> Iterator[Transaction]:
        """Context manager like `_begin`, for a transaction that `interrupt` can cancel."""
        with self._begin() as transaction, self._queries.registered(transaction.cancel) as query:
            yield _Cancellable(transaction, query)

    def quote(self, name: Name) -> str:
        """Quote the name of a table with `mark`, for use in a statement."""
        return quoted(name, self.mark)

    @contextlib.contextmanager
    def read(self, select: str) -> Iterator[RowSource]:
        """Context manager that runs a query and yields its rows; see `Database.read`."""
        with self.run(select) as rows:
            if rows is None:
                raise DatabaseError(f"{self.name}: this statement returns no rows: {select:.200}")
            yield rows

    def schema(self, select: str) -> pa.Schema:
        """Return the columns of a query without reading a row."""
        statement = f"SELECT * FROM ({select}\n) AS elasticdl_select LIMIT 0"
        with self.read(statement) as rows:
            return rows.schema

    def fill(self, table: Name, key: Sequence[str], rows: RowSource) -> int:
        """Set columns of a table's rows, matched by key; see `Database.fill`."""
        info = self._known(table)
        rows = to_write(rows)
        keys = [f"{_KEY}{i}" for i in range(len(key))]
        fields = list(rows.schema)[len(key) :]
        targets = self._targets(info, key, fields)
        values = [f"{_VALUE}{i}" for i in range(len(fields))]
        with watched(rows) as rows, self._cancellable() as transaction:
            types = dict(zip([*keys, *values], self._types(rows.schema), strict=True))
            transaction.create_given(
                types, dict(zip(keys, key, strict=True)), self.quote(info.parts)
            )
            num_given = transaction.load(renamed(rows, list(types)))
            if self.ddl_commits:
                self._check_duplicates(transaction, table, keys)
            missing = [
                (field.name, types[value])
                for field, value, target in zip(fields, values, targets, strict=True)
                if target is None
            ]
            names = [target or field.name for field, target in zip(fields, targets, strict=True)]
            with self._added(transaction, info, missing):
                matched = dict(zip(keys, key, strict=True))
                written = dict(zip(names, values, strict=True))
                with self._filling(info, names):
                    changed = sum(
                        transaction.run(self._update(info, matched, written, part))
                        for part in transaction.given_parts()
                    )
                if changed < num_given:
                    # Some rows are gone, a key occurs twice, or a trigger kept rows unchanged.
                    self._check_duplicates(transaction, table, keys)
                    ((there,),) = transaction.fetch(
                        f"SELECT count(*) FROM {self.quote(info.parts)} AS filled, "
                        f"{GIVEN} AS given WHERE {self._match(info, matched)}"
                    )
                    if there > changed:
                        raise self._unchanged(table, there - changed)
        return changed

    def append(self, table: Name, rows: RowSource) -> int:
        """Append rows to a table by column name; see `Database.append`."""
        rows = to_write(rows)
        info = self.table(table)
        values = [f"{_VALUE}{i}" for i in range(len(rows.schema))]
        types = dict(zip(values, self._types(rows.schema), strict=True))
        names = list(rows.schema.names) if info is None else self._appended(info, rows)
        quoted_names = [column_name(name, self.mark) for name in names]
        where = self.quote(table if info is None else info.parts)
        with watched(rows) as rows, self._cancellable() as transaction:
            transaction.create_given(types, {}, "")
            transaction.load(renamed(rows, values))
            if info is None:
                columns = dict(zip(quoted_names, types.values(), strict=True))
                return self._create(transaction, where, columns, values)
            return transaction.run(_insert(where, quoted_names, values))

    def _appended(self, info: TableInfo, rows: RowSource) -> list[str]:
        """Return, for each column of the rows to append, the table's column of the same name.

        Raises:
            DatabaseError: The table has no such column, or the values do not fit it.
        """
        names = []
        for name, target in zip(
            rows.schema.names, self._targets(info, (), list(rows.schema)), strict=True
        ):
            if target is None:
                raise DatabaseError(
                    f"{self.name}: the table {info.name} has no column {name!r}; it has "
                    f"{', '.join(info.columns)}. Choose another table, or select other columns."
                )
            names.append(target)
        return names

    def _create(
        self,
        transaction: Transaction,
        table: str,
        columns: Mapping[str, str],
        values: Sequence[str],
    ) -> int:
        """Create a table with the rows of the temporary table.

        Args:
            transaction: The transaction.
            table: The table, as SQL.
            columns: Name of each column, as SQL -> its type.
            values: The columns of the temporary table, in the order of `columns`.

        Returns:
            The number of its rows.
        """
        made = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        transaction.run(f"CREATE TABLE {table} ({made})")
        return transaction.run(_insert(table, list(columns), values))

    def _known(self, table: Name) -> TableInfo:
        info = self.table(table)
        if info is None:
            raise DatabaseError(f"{self.name}: there is no table {shown(table)!r}.")
        return info

    def _targets(
        self, info: TableInfo, key: Sequence[str], fields: Sequence[pa.Field]
    ) -> list[str | None]:
        """Return the columns of a table into which values are to be written.

        Args:
            info: The table.
            key: Columns of its key, which must not be written to.
            fields: Names and types of the columns with the values.

        Returns:
            For each field, the column of the same name (ignoring case if that is unique); None if
            there is no such column yet.

        Raises:
            DatabaseError: The values do not fit a column, or it cannot be written to.
        """
        targets = [matching(field.name, info.columns) for field in fields]
        for field, target in zip(fields, targets, strict=True):
            if target is None:
                continue
            why_not = why_unfit(target, info.columns[target], kind_of_values(field.type))
            if target in key:
                why_not = f"the column {target} is part of the key."
            if target in info.generated:
                why_not = why_generated(target)
            if why_not:
                raise DatabaseError(
                    f"{self.name}: {info.name} cannot store these values: {why_not}"
                )
        return targets

    def _types(self, schema: pa.Schema) -> list[str]:
        return [written_type(field.type, self.words) for field in schema]

    @contextlib.contextmanager
    def _added(
        self, transaction: Transaction, info: TableInfo, missing: Sequence[tuple[str, str]]
    ) -> Iterator[None]:
        """Context manager that adds missing columns to a table; if its block fails, removes them.

        In this base class, the rollback of the transaction removes them.

        Args:
            transaction: The transaction.
            info: The table.
            missing: Name and type of each column to add.
        """
        for name, type_ in self._still_missing(info, missing):
            added = f"{column_name(name, self.mark)} {type_}"
            transaction.run(f"ALTER TABLE {self.quote(info.parts)} ADD COLUMN {added}")
        yield

    def _still_missing(
        self, info: TableInfo, missing: Sequence[tuple[str, str]]
    ) -> Sequence[tuple[str, str]]:
        """Return the columns to add, without those that another program has added meanwhile.

        Args:
            info: The table, as it was when the missing columns were determined.
            missing: Name and type of each column that it lacked.

        Raises:
            DatabaseError: Another program has added a column that the values do not fit.
        """
        now = self._known(info.parts).columns
        for name, type_ in missing:
            there = matching(name, now)
            why_not = why_unfit(there, now[there], kind_of_column(type_)) if there else ""
            if why_not:
                raise DatabaseError(
                    f"{self.name}: {info.name} cannot store these values: {why_not}"
                )
        return [each for each in missing if matching(each[0], now) is None]

    def _update(
        self, info: TableInfo, keys: Mapping[str, str], values: Mapping[str, str], part: str
    ) -> str:
        """Build the UPDATE that copies values from the temporary table to the rows with equal keys.

        Args:
            info: The table.
            keys: Column of the temporary table -> key column of the table to compare it with.
            values: Column of the table to set -> column of the temporary table with its values.
            part: Part of the temporary table, as SQL, from `Transaction.given_parts`.
        """
        changes = ", ".join(
            f"{column_name(name, self.mark)} = given.{value}" for name, value in values.items()
        )
        return (
            f"UPDATE {self.quote(info.parts)} AS filled SET {changes} "
            f"FROM {part} AS given WHERE {self._match(info, keys)}"
        )

    def _match(self, info: TableInfo, keys: Mapping[str, str]) -> str:
        return " AND ".join(
            f"filled.{column_name(column, self.mark)} = {self._key(key, info.columns.get(column))}"
            for key, column in keys.items()
        )

    def _key(self, key: str, type_: str | None) -> str:
        """Return the SQL for a key column of the temporary table, to compare it with the target's.

        Args:
            key: Name of the column in the temporary table.
            type_: Type of the target table's key column, to which the SQL casts. None: do not cast.
        """
        return f"given.{key}" if type_ is None else f"CAST(given.{key} AS {type_})"

    def _check_duplicates(self, transaction: Transaction, table: Name, keys: Sequence[str]) -> None:
        columns = ", ".join(keys)
        twice = transaction.fetch(
            f"SELECT {columns} FROM {GIVEN} GROUP BY {columns} HAVING count(*) > 1 LIMIT 1"
        )
        if twice:
            raise self._twice(table, ", ".join(str(value) for value in twice[0]))

    def _twice(self, table: Name, key: str) -> DatabaseError:
        return DatabaseError(
            f"{self.name}: {shown(table)} cannot be filled: the SELECT returns the row with the "
            f"key {key} more than once, so it is unclear which prediction to store."
        )

    def _unchanged(self, table: Name, count: int) -> DatabaseError:
        return DatabaseError(
            f"{self.name}: {shown(table)} was not filled: {counted(count, 'row')} of the SELECT "
            "could not be updated. A trigger, a rule or a row security policy of the table "
            "suppresses the UPDATE. Change it, or choose another table for the predictions."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


class _Cancellable(Transaction):
    """A transaction whose statements run in another thread, so that they can be cancelled."""

    def __init__(self, transaction: Transaction, query: DatabaseQuery) -> None:
        self._transaction, self._query = transaction, query

    def cancel(self) -> None:
        self._query.cancel()

    def run(self, statement: str) -> int:
        return self._query.wait_for(lambda: self._transaction.run(statement))

    def fetch(self, statement: str) -> Sequence[Sequence[Any]]:
        return self._query.wait_for(lambda: self._transaction.fetch(statement))

    def create_given(self, columns: Mapping[str, str], like: Mapping[str, str], table: str) -> None:
        self._query.wait_for(lambda: self._transaction.create_given(columns, like, table))

    def load(self, rows: RowSource) -> int:
        rows = RowSource(rows.schema, until_cancelled(rows.batches, self._query))
        return self._query.wait_for(lambda: self._transaction.load(rows))

    def given_parts(self) -> Sequence[str]:
        return self._transaction.given_parts()


def until_cancelled(
    batches: Iterable[pa.RecordBatch], query: DatabaseQuery
) -> Iterator[pa.RecordBatch]:
    """Yield batches; raise a `DatabaseError` before the next one if the query is cancelled."""
    for batch in batches:
        # Otherwise a driver may send all batches before it notices the server's error.
        if query.is_cancelled:
            raise DatabaseError("The statement was cancelled.")
        yield batch


class watched:  # noqa: N801 - used as a function
    """Context manager that passes on an exception of the row source unchanged.

    If the source raises while a driver iterates over the rows to write, some drivers raise an
    exception of their own instead. At the end of the block, the original one is raised.

    Args:
        rows: The rows to write. The context manager yields them for use within the block.
    """

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._error: Exception | None = None

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._rows.batches
        except Exception as error:
            self._error = error
            raise

    def __enter__(self) -> RowSource:
        return RowSource(self._rows.schema, self._batches())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._error is not None and error is not self._error:
            raise self._error


def is_query(statement: str) -> bool:
    """Return whether a statement only reads: SELECT, VALUES, TABLE, or a WITH that writes nothing.

    Example:
        >>> is_query("-- all" + chr(10) + "(select 1)"), is_query("INSERT INTO t SELECT 1")
        (True, False)
        >>> is_query("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a RETURNING x")
        False
    """
    found = _QUERY.match(statement)
    if found is None or found[1].upper() != "WITH":
        return found is not None
    return _WRITES.search(_NOT_CODE.sub(" ", statement)) is None


def _insert(table: str, columns: Sequence[str], values: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {GIVEN}"


def renamed(rows: RowSource, names: Sequence[str]) -> RowSource:
    """Rename the columns of rows, for example to those of the temporary table.

    Args:
        rows: The rows.
        names: New name of each column, in order.
    """
    schema = pa.schema(
        pa.field(name, field.type) for name, field in zip(names, rows.schema, strict=True)
    )
    return RowSource(schema, _renamed(schema, rows.batches))


def _renamed(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
