"""Arrow batches from drivers that give rows as Python tuples.

Used by `sqlite.py`, `mysql.py` and `sqlalchemy.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from elasticdl.sql.database import DatabaseError, Rows
from elasticdl.sql.databases.plain import check_years
from elasticdl.sql.kinds import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True)
class Column:
    """A column of tuples.

    Attributes:
        name: Its name.
        type: Its Arrow type.
        convert: Makes a value that is not None one that Arrow takes for the type; None leaves all
            as they are.
    """

    name: str
    type: pa.DataType
    convert: Callable[[Any], Any] | None = None


def rows_of(
    columns: Sequence[Column], fetch: Callable[[], Sequence[Sequence[Any]]], name: str
) -> Rows:
    """Return the rows that a cursor gives.

    Args:
        columns: The columns.
        fetch: Returns the next rows, none at the end; its errors are the database's.
        name: Of the database, for errors.

    Raises:
        DatabaseError: A value does not fit its column; while the rows are read.
    """
    schema = pa.schema(pa.field(column.name, column.type) for column in columns)
    return Rows(schema, _batches(schema, columns, fetch, name))


def _batches(
    schema: pa.Schema,
    columns: Sequence[Column],
    fetch: Callable[[], Sequence[Sequence[Any]]],
    name: str,
) -> Iterator[pa.RecordBatch]:
    while rows := fetch():
        arrays = []
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(check_years(_array(column, values)))
            except (ValueError, TypeError, ArithmeticError) as error:
                raise DatabaseError(
                    f"{name}: column {column.name!r} cannot be read as {in_words(column.type)}: "
                    f"{error} Convert it in the SELECT: CAST(the_column AS ...)."
                ) from error
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    convert = column.convert
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    return pa.array(values, column.type)


def tuples_of(rows: Rows, convert: Callable[[pa.Array], list[Any]]) -> Iterator[list[Any]]:
    """Return rows as tuples, batch by batch.

    Args:
        rows: The rows.
        convert: Makes the values of a column ones that the driver takes.
    """
    for batch in rows.batches:
        yield list(zip(*(convert(column) for column in batch.columns), strict=True))
