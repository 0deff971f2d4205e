"""First rows of a table for display: all columns, with missing values, whatever their types.

Dates and times are shown as ISO 8601, although models get seconds. A column that a model cannot
read is listed with the reason.

Callers: `overview.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from elasticdl.data.field import STRING
from elasticdl.data.table import decode_table, why_no_field
from elasticdl.data.table_times import iso_text
from elasticdl.data.type_words import in_words
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from elasticdl.data.record_source import TableSource

    Array: TypeAlias = np.ndarray[Any, Any]


class TableRows(NamedTuple):
    """The first rows of a table.

    Attributes:
        records: For each row, column -> value; a missing value is not in the dict.
        types: Column -> name of its type in the table, for columns whose values were converted to
            another type in `records`.
        unusable: Column -> why a model cannot use it; such a column is left out of `records`.
    """

    records: list[dict[str, Array]]
    types: dict[str, str]
    unusable: dict[str, str]


def first_rows(source: TableSource, count: int) -> TableRows:
    """Return the first rows of a table.

    Args:
        source: The table.
        count: Maximum number of rows to return.
    """
    tables: list[pa.Table] = []
    missing = count
    for table in source.arrow_tables():
        tables.append(table.slice(0, missing))
        missing -= tables[-1].num_rows
        if missing <= 0:
            break
    rows = pa.concat_tables(tables) if tables else source.arrow_schema().empty_table()
    found = TableRows([{} for _ in range(rows.num_rows)], {}, {})
    for name in rows.column_names:
        _add_column(name, rows[name].combine_chunks(), found)
    return found


def _add_column(name: str, column: pa.Array, found: TableRows) -> None:
    if reason := why_no_field(column.type):
        found.types[name], found.unusable[name] = _short(column.type), reason
        return
    present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    column = column.drop_null()
    if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
        found.types[name] = in_words(column.type).split(" ")[0].removesuffix("s")
        texts = map(iso_text, column.cast(pa.string()).to_pylist())
        values = [np.array([text.encode()], STRING) for text in texts]
    else:
        try:
            records = decode_table(pa.table({name: column}), None, lambda _: "")
        except SchemaError:
            # Values are missing within lists.
            found.types[name] = _short(column.type)
            found.unusable[name] = "its lists have missing values"
            return
        values = [record[name] for record in records]
    for row, value in zip(present.tolist(), values, strict=True):
        found.records[row][name] = value


def _short(arrow_type: pa.DataType) -> str:
    return str(arrow_type).partition("<")[0]
