"""Database protocol for statements: reads rows as Arrow batches, writes predictions.

    with open_database("duckdb:///shop.db") as database:
        with database.read("SELECT age, salary FROM employee") as rows:
            for batch in rows.batches: ...

Each kind of database is one file of `databases/` that implements the protocol below. Every
implementation keeps this contract, which `tests/sql/test_databases.py` checks:

* `read` yields rows in batches, in memory that does not grow with their number.
* `fill` sets columns of the rows with the given keys. It changes all of these rows or none, even if
  the process is killed, and never drops anything.
* Names are quoted by the database's own rules: a name is never executed as SQL.
* A column of an unsupported type is rejected with an error that names the column;
  `databases/plain.py` lists the conversion of each supported type.
* If a retry may help (no connection, a lock), the error is an `UnavailableError`, otherwise a
  `DatabaseError`. Neither contains a password.

Each `read` has its own connection, so that two reads can run at the same time. Whatever a
statement changes in its connection (SET, BEGIN) ends with it.

Used by `training.py`, `prediction.py` and the entry points (shell, notebook, server).
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
    """The database rejects a statement or cannot be reached; the message is the database's own."""


@dataclass(frozen=True)
class RowSource:
    """The result of a query: its columns and its rows, batch by batch.

    Attributes:
        schema: The columns.
        batches: The rows, which can be read once.
    """

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class TableInfo:
    """Description of a table of the database.

    Attributes:
        parts: Parts of its full name, such as schema and table; equal for all spellings of it.
        columns: Name of each column -> its type, as the database writes it.
        key: Columns that identify a row and never change, such as the PRIMARY KEY or the database's
            own row number (`rowid`); empty if there are none.
        why_no_key: Why `key` is empty and how to fix it, such as "t has no PRIMARY KEY. Add one:
            ...", to complete an error message.
        casts: Column of `key` -> SQL type to cast it to in a SELECT; only for columns that would
            otherwise lose digits when they are read.
        definition: The SQL that defines a view; empty for a table, or if it is unknown.
        generated: Columns that the database computes and that cannot be written.
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
        """Full name of the table, for messages."""
        return shown(self.parts)


class Database(Protocol):
    """A connection to a database; the module docstring lists what every kind guarantees.

    Attributes:
        dialect: Name of its SQL dialect in sqlglot.
        name: The database's address without a password, for messages.
        is_in_memory: Whether the database exists only within this connection, so that other
            processes cannot open it.
    """

    dialect: str
    name: str
    is_in_memory: bool

    def quote(self, name: Name) -> str:
        """Quote the name of a table by the rules of the database, for use in a statement."""
        ...

    def read(self, select: str) -> AbstractContextManager[RowSource]:
        """Context manager that runs a query and yields its columns and rows.

        Raises:
            DatabaseError: The database rejects the query, or a column has an unsupported type. Can
                also be raised while the rows are read.
            UnavailableError: The database cannot be reached, or the connection is lost.
        """
        ...

    def schema(self, select: str) -> pa.Schema:
        """Return the columns of a query without reading a row.

        Raises:
            DatabaseError: The database rejects it.
        """
        ...

    def run(self, statement: str) -> AbstractContextManager[RowSource | None]:
        """Context manager that runs any statement in the database's own SQL.

        It yields the rows of the result, or None if the statement has no result.

        Raises:
            DatabaseError: The database rejects it.
        """
        ...

    def interrupt(self) -> None:
        """Cancel all statements that other threads run on this object; may be called repeatedly.

        Each of them raises a `DatabaseError`. In the main thread, Ctrl-C and SIGTERM have the same
        effect. The error is raised once the database has stopped computing, or after ten seconds in
        which it could not be reached.
        """
        ...

    def table(self, name: Name) -> TableInfo | None:
        """Return a table by its name, with or without a schema; None if there is no such table."""
        ...

    def tables(self) -> Sequence[str]:
        """Return the names of all tables, for completion and for suggestions of similar names."""
        ...

    def schemas(self) -> Sequence[str]:
        """Return the names of schemas and attached databases, which may precede a table's name."""
        ...

    def fill(self, table: Name, key: Sequence[str], rows: RowSource) -> int:
        """Set columns of a table's rows, matched by key, in one transaction.

        A missing column is added. Rows that have been deleted in the meantime are skipped.

        Args:
            table: Name of the table.
            key: Columns of the table that identify a row, as `TableInfo.key`.
            rows: The first columns are the values of `key`, in its order and under any names. The
                other columns are the new values, named like their target columns.

        Returns:
            The number of rows that matched.

        Raises:
            DatabaseError: The database rejects it, a key occurs twice, the values do not fit the
                column, or a trigger keeps rows unchanged. The table is unchanged.
            UnavailableError: The connection is lost. The table is unchanged.
        """
        ...

    def append(self, table: Name, rows: RowSource) -> int:
        """Append rows to a table by column name; creates the table if it is missing.

        Returns:
            The number of appended rows.

        Raises:
            DatabaseError: The database rejects it. The table is unchanged.
        """
        ...

    def close(self) -> None:
        """Close the connection; may be called repeatedly."""
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
            `postgresql://USER:PASSWORD@HOST/NAME`, `mysql://...`, or any other SQLAlchemy URL.
            None: the environment variable ELASTICDL_DATABASE, else `duckdb://`.

    Raises:
        UsageError: The URL does not name a supported kind of database.
        MissingExtraError: A package is not installed.
        DatabaseError: The database rejects the connection.
        UnavailableError: The database is temporarily unreachable.
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
    """Build the error for a URL that does not name a supported kind of database."""
    return UsageError(
        f"--database={without_password(url)}: not a valid database URL. Expected duckdb:///FILE, "
        "sqlite:///FILE, postgresql://USER:PASSWORD@HOST/NAME, mysql://USER:PASSWORD@HOST/NAME, "
        "mariadb://... or another SQLAlchemy URL, such as oracle+oracledb://..., whose driver is "
        "installed."
    )
