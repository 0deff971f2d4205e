"""Conversion between Arrow batches and tuples, for drivers that return and accept rows as tuples.

Used by `sqlite.py`, `mysql.py` and `sqlalchemy.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from elasticdl.data.type_words import in_words
from elasticdl.sql.database_interface import DatabaseError, RowSource
from elasticdl.sql.databases.plain import check_years

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True)
class TupleColumn:
    """Description of one column of rows that are tuples.

    Attributes:
        name: Name of the column.
        type: Arrow type of the column.
        convert: Function (value that is not None) -> value that Arrow accepts for the type. None:
            leave all values unchanged.
    """

    name: str
    type: pa.DataType
    convert: Callable[[Any], Any] | None = None


def rows_of(
    columns: Sequence[TupleColumn], fetch: Callable[[], Sequence[Sequence[Any]]], name: str
) -> RowSource:
    """Convert the tuples of a cursor to Arrow batches.

    Args:
        columns: The columns.
        fetch: Function () -> next rows, empty at the end; raises the errors of the database.
        name: Name of the database, for errors.

    Raises:
        DatabaseError: A value does not fit its column. Raised while the rows are read.
    """
    schema = pa.schema(pa.field(column.name, column.type) for column in columns)
    return RowSource(schema, _batches(schema, columns, fetch, name))


def _batches(
    schema: pa.Schema,
    columns: Sequence[TupleColumn],
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


def _array(column: TupleColumn, values: Sequence[Any]) -> pa.Array:
    convert = column.convert
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    return pa.array(values, column.type)


def tuples_of(rows: RowSource, convert: Callable[[pa.Array], list[Any]]) -> Iterator[list[Any]]:
    """Yield, for each batch, a list of its rows as tuples.

    Args:
        rows: The rows.
        convert: Function (column) -> its values, as the driver accepts them.
    """
    for batch in rows.batches:
        yield list(zip(*(convert(column) for column in batch.columns), strict=True))
