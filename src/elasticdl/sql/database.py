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
* A column that no record can hold is refused by name; `databases/plain.py` says what becomes of
  which type.
* What the same statement may overcome later (no connection, a lock) is an `UnavailableError`,
  anything else that a database says a `DatabaseError`; passwords are in neither.

Each `read` has a connection of its own, so that two can be read at a time. What a statement does
to its connection (SET, BEGIN) ends with it.

Used by `train.py`, `predict.py` and the doors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

from elasticdl.errors import DataError, MissingExtraError, UsageError
from elasticdl.job import without_password
from elasticdl.sql.names import shown

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from elasticdl.sql.names import Name

DEFAULT_URL = "duckdb://"
ENVIRONMENT = "ELASTICDL_DATABASE"
BATCH_ROWS = 1 << 15

_DIALECT = re.compile(r"\w+(\+\w+)?")
_PACKAGES = {
    "duckdb": "duckdb",
    "adbc_driver_postgresql": "adbc-driver-postgresql",
    "adbc_driver_manager": "adbc-driver-manager",
    "sqlalchemy": "sqlalchemy",
    "pymysql": "pymysql",
}


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
        parts: Its full name: the same for every way to write the name.
        columns: Name of each column -> its type, as the database writes it.
        key: Columns or row numbers that identify a row and never change; empty if there are none.
        why_no_key: Why `key` is empty and what helps, as a part of a sentence.
        casts: Column of the key -> type to convert it to in a SELECT, where its own would lose
            digits on the way.
        definition: SQL that a view stands for; empty if it is none, or not known.
        generated: Columns that the database computes, and nobody else may write.
    """

    parts: tuple[str, ...]
    columns: Mapping[str, str]
    key: Sequence[str]
    why_no_key: str = ""
    casts: Mapping[str, str] = field(default_factory=dict)
    definition: str = ""
    generated: Collection[str] = ()

    @property
    def name(self) -> str:
        """Its full name, for messages."""
        return shown(self.parts)


class Database(Protocol):
    """A connection to a database; see the module for the laws.

    Attributes:
        dialect: sqlglot's name of its SQL dialect.
        name: Its address without a password, for messages.
        is_in_memory: Whether it ends with this connection, and no other process can open it.
    """

    dialect: str
    name: str
    is_in_memory: bool

    def quote(self, name: Name) -> str:
        """Return the name of a table as SQL; see `names.py`."""
        ...

    def read(self, select: str) -> AbstractContextManager[Rows]:
        """Run a query.

        Raises:
            DatabaseError: The database refuses it, or a column has a type that no record can
                hold; also while the rows are read.
            UnavailableError: The database cannot be reached, or the connection is lost.
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

    def interrupt(self) -> None:
        """End all that other threads run here, each with a `DatabaseError`; may be called again.

        In the main thread Ctrl-C and SIGTERM do the same: the database has stopped computing, or
        could not be reached for ten seconds, when they are answered.
        """
        ...

    def table(self, name: Name) -> TableInfo | None:
        """Return a table by its name, which may have a schema; None if there is none."""
        ...

    def tables(self) -> Sequence[str]:
        """Return the names of all tables, for completion and near names."""
        ...

    def fill(self, table: Name, key: Sequence[str], rows: Rows) -> int:
        """Set columns of a table's rows, matched by key, in one transaction.

        A column that is missing is added. Rows that are no longer there are not matched.

        Args:
            table: Name of the table.
            key: Columns of the table that identify a row, as `TableInfo.key`.
            rows: First the values of the key, in its order and under any names; then the values,
                under the names of the columns that they go to.

        Returns:
            How many rows were matched.

        Raises:
            DatabaseError: The database refuses, a key is given twice, the values do not fit
                the column, or a trigger keeps rows as they are; the table is as it was.
            UnavailableError: The connection is lost; the table is as it was.
        """
        ...

    def append(self, table: Name, rows: Rows) -> int:
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
        DatabaseError: The database refuses the connection.
        UnavailableError: The database cannot be reached for the moment.
    """
    url = url or os.environ.get(ENVIRONMENT) or DEFAULT_URL
    kind, separator, rest = url.partition("://")
    try:
        if kind == "duckdb" and separator and (not rest or rest.startswith("/")):
            from elasticdl.sql.databases.duckdb import DuckDB  # noqa: PLC0415 - its package is optional

            return DuckDB(rest.removeprefix("/") or None)
        if kind == "sqlite" and separator and (not rest or rest.startswith("/")):
            from elasticdl.sql.databases.sqlite import SQLite  # noqa: PLC0415 - only where it is used

            return SQLite(rest.removeprefix("/") or None)
        if kind in {"postgresql", "postgres"} and separator:
            from elasticdl.sql.databases.postgresql import PostgreSQL  # noqa: PLC0415 - as DuckDB

            return PostgreSQL(url)
        if kind in {"mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"} and separator:
            from elasticdl.sql.databases.mysql import MySQL  # noqa: PLC0415 - as DuckDB

            return MySQL(url)
        if separator and rest and _DIALECT.fullmatch(kind):
            from elasticdl.sql.databases.sqlalchemy import SQLAlchemyDatabase  # noqa: PLC0415 - as DuckDB

            return SQLAlchemyDatabase(url)
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(str(error.name).partition(".")[0])
        if package is None:
            raise UsageError(
                f"--database={without_password(url)}: the driver {error.name} of {kind} is not "
                f"installed. Install it: pip install {str(error.name).replace('_', '-')}"
            ) from error
        raise MissingExtraError(package, "sql", f"The database {kind}") from error
    raise unknown_kind(url)


def unknown_kind(url: str) -> UsageError:
    """Return the error of a URL that names no kind of database."""
    return UsageError(
        f"--database={without_password(url)}: this is no URL of a database. Expected "
        "duckdb:///FILE, sqlite:///FILE, postgresql://USER:PASSWORD@HOST/NAME, "
        "mysql://USER:PASSWORD@HOST/NAME, mariadb://... or another URL of SQLAlchemy's, such as "
        "oracle+oracledb://..., whose driver is installed."
    )
