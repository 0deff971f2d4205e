"""Target checks: decide whether a statement may write to a table, before any computation.

    the SELECT reads the table          its column is filled, row by row (`prediction.py`)
    the SELECT reads a view of it       rejected: copies of its own rows would be appended to it
    anything else                       rows are appended, if the table has the same columns

Rows are appended only to a table that has all of their columns and no others, although databases
allow more. Otherwise rows with missing values could end up in an unrelated table without an error.

Used by `prediction.py` and `evaluation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.data.wording import listed
from elasticdl.errors import UsageError
from elasticdl.sql.database_interface import DatabaseError
from elasticdl.sql.names import matching, parts, shown, written_like
from elasticdl.sql.rewrite import is_same_table, sources_of, tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.sql.database_interface import Database, TableInfo
    from elasticdl.sql.names import Name


def is_read(name: Name, table: TableInfo | None, select: str, database: Database) -> bool:
    """Return whether a SELECT reads a table, under any spelling of the table's name.

    Args:
        name: Name of the table in the statement.
        table: The table; None if it does not exist yet.
        select: The SELECT.
        database: Database of the table.
    """
    return any(
        _is_same(name, table, read, database)
        for read in tables_of(select, database.dialect, with_ctes=True)
    )


def _is_same(name: Name, table: TableInfo | None, read: Name, database: Database) -> bool:
    if table is None:
        return is_same_table(name, read)
    if not is_same_table(parts(name)[-1:], parts(read)[-1:]):
        return False
    found = database.table(read)
    # A common table expression is not a table.
    return found is None or found.parts == table.parts


def view_of(table: TableInfo, select: str, database: Database) -> str:
    """Return the name of a view through which a SELECT reads the rows of a table; empty if none.

    Predictions of such a SELECT cannot fill the table, and appending them would repeat its rows.
    A view that only checks which rows the table already has (WHERE NOT EXISTS ...) does not count.
    """
    seen: set[tuple[str, ...]] = set()
    left = [(select, "")]
    while left:
        query, through = left.pop()
        for read in sources_of(query, database.dialect):
            found = _found(read, database)
            if found is None or found.parts in seen:
                continue
            if found.parts == table.parts:
                if through:
                    return through
                continue
            seen.add(found.parts)
            if found.definition:
                left.append((found.definition, through or shown(read)))
    return ""


def _found(name: Name, database: Database) -> TableInfo | None:
    try:
        return database.table(name)
    except (DatabaseError, UsageError):
        # A function, or something else that sqlglot treats as a table.
        return None


def check_appended(
    table: TableInfo | None,
    name: Name,
    selected: Sequence[str],
    written: Sequence[str],
    database: Database,
) -> None:
    """Raise a `UsageError` if predictions cannot be appended to a table.

    Args:
        table: The table; None if it will be created.
        name: Name of the table.
        selected: Columns of the SELECT.
        written: Columns of the predictions.
        database: Database of the table.
    """
    for column, as_selected in zip(
        written, written_like(written, selected, database.dialect), strict=True
    ):
        if as_selected in selected:
            raise UsageError(
                f"{shown(name)} would have two columns {column}: the SELECT has one already. "
                "Write the prediction into a column of another name, or do not select that one."
            )
    if table is None:
        check_schema(name, database)
    else:
        check_columns(table, name, [*selected, *written])


def check_schema(name: Name, database: Database) -> None:
    """Raise a `UsageError` if a table cannot be created because its schema does not exist."""
    *schema, _ = parts(name)
    if not schema:
        return
    known = database.schemas()
    if matching(schema[-1], known) is None:
        raise UsageError(
            f"{database.name} has no schema {schema[-1]!r}, so the table {shown(name)} cannot be "
            f"created; it has {listed(known)}. Create the schema first, or choose another."
        )


def check_columns(table: TableInfo, name: Name, columns: Sequence[str]) -> None:
    """Raise a `UsageError` unless a table has exactly the columns of the rows to append.

    Columns that the database computes are ignored. A view is always rejected.

    Args:
        table: The table.
        name: Its name in the statement, for the error.
        columns: Columns of the rows.
    """
    if table.definition:
        raise UsageError(
            f"{shown(name)} is a view, and rows cannot be appended to views. Choose a table."
        )
    targets = [matching(column, table.columns) for column in columns]
    help_ = "Choose a table that does not exist yet, to have it created"
    missing = [column for column, target in zip(columns, targets, strict=True) if target is None]
    if missing:
        raise UsageError(
            f"The table {shown(name)} has no column {missing[0]!r}; it has "
            f"{', '.join(table.columns)}. {help_}, or select other columns."
        )
    others = [column for column in table.columns if column not in {*targets, *table.generated}]
    if others:
        raise UsageError(
            f"The table {shown(name)} does not match these rows: its "
            f"{'column' if len(others) == 1 else 'columns'} {listed(others)} would be NULL in each "
            f"appended row. {help_}."
        )
