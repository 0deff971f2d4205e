"""Databases as the statements see them: rows out as Arrow batches, predictions in.

    with open_database("duckdb:///shop.db") as database:
        with database.read("SELECT age, salary FROM employee") as rows:
            for batch in rows.batches: ...

One file of this folder per kind of database follows the protocol below. Laws, held by
`tests/sql/test_databases.py` for each of them:

* `read` gives rows in batches, in memory that does not grow with their number.
* `fill` changes one column of the rows with the given keys, all or none, even if the process is
  killed. Nothing is ever dropped.
* Names are quoted by the database's own rules: a name is never SQL.

Used by `train.py`, `predict.py` and the doors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from elasticdl.errors import DataError, MissingExtraError, UsageError
from elasticdl.job import without_password

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

DEFAULT_URL = "duckdb://"
ENVIRONMENT = "ELASTICDL_DATABASE"
BATCH_ROWS = 1 << 15

_DUCKDB = re.compile(r"duckdb://(?:/(?P<path>.*))?")


class DatabaseError(DataError):
    """The database refuses a statement, or cannot be reached; the message is its own."""


@dataclass(frozen=True)
class Rows:
    """The result of a query.

    Attributes:
        schema: Its columns.
        batches: Its rows, to be read once.
    """

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class TableInfo:
    """A table of the database.

    Attributes:
        columns: Name of each column -> its type, as the database writes it.
        key: Columns or row numbers that identify a row and never change; empty if there are none.
        why_no_key: Why `key` is empty, as a sentence.
    """

    columns: Mapping[str, str]
    key: Sequence[str]
    why_no_key: str = ""


class Database(Protocol):
    """A connection to a database; see the module for the laws.

    Attributes:
        dialect: sqlglot's name of its SQL dialect.
        name: Its address without a password, for messages.
    """

    dialect: str
    name: str

    def quote(self, name: str) -> str:
        """Return a name, which may be qualified by dots, as SQL."""
        ...

    def read(self, select: str) -> AbstractContextManager[Rows]:
        """Run a query.

        Raises:
            DatabaseError: The database refuses it.
        """
        ...

    def schema(self, select: str) -> pa.Schema:
        """Return the columns of a query without reading a row.

        Raises:
            DatabaseError: The database refuses it.
        """
        ...

    def run(self, statement: str) -> AbstractContextManager[Rows | None]:
        """Run any statement of the database's own; yields its rows, None if it has no result.

        Raises:
            DatabaseError: The database refuses it.
        """
        ...

    def table(self, name: str) -> TableInfo | None:
        """Return a table by its name, which may be qualified; None if there is none."""
        ...

    def tables(self) -> Sequence[str]:
        """Return the names of all tables, for completion and near names."""
        ...

    def fill(self, table: str, column: str, rows: Rows) -> int:
        """Set a column of a table by key, in one transaction; adds the column if it is missing.

        Args:
            table: Name of the table.
            column: Name of the column.
            rows: The columns of the table's key, in its order, then the values.

        Returns:
            How many rows were changed.

        Raises:
            DatabaseError: The database refuses; the table is as it was.
        """
        ...

    def append(self, table: str, rows: Rows) -> int:
        """Append rows to a table by the names of its columns; creates it if it is missing.

        Returns:
            How many rows were appended.

        Raises:
            DatabaseError: The database refuses; the table is as it was.
        """
        ...

    def close(self) -> None:
        """Close the connection; doing it twice does no harm."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def open_database(url: str | None = None) -> Database:
    """Connect to a database.

    Args:
        url: `duckdb:///FILE`, `duckdb://` for one in memory, `sqlite:///FILE`,
            `postgresql://USER:PASSWORD@HOST/NAME`, `mysql://...`, or any URL of SQLAlchemy's;
            None takes ELASTICDL_DATABASE of the environment, else `duckdb://`.

    Raises:
        UsageError: The URL names no known kind of database.
        MissingExtraError: A package is not installed.
        DatabaseError: The database cannot be opened.
    """
    url = url or os.environ.get(ENVIRONMENT) or DEFAULT_URL
    found = _DUCKDB.fullmatch(url)
    if found is not None:
        try:
            from elasticdl.sql.duckdb import DuckDB  # noqa: PLC0415 - its package is optional
        except ModuleNotFoundError as error:
            raise MissingExtraError("duckdb", "sql", "Using DuckDB") from error
        return DuckDB(found["path"] or None)
    raise UsageError(
        f"--database={without_password(url)}: expected duckdb:///FILE, sqlite:///FILE, "
        "postgresql://USER:PASSWORD@HOST/NAME, mysql://... or another URL of SQLAlchemy's."
    )
