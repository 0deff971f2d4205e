"""Infers the types of the columns of CSV files from all their cells.

If a few cells, such as mistyped numbers, are the only reason why a column is text, a warning names
the column and the line of the first such cell. Without the warning, users would not notice that
models treat the numbers as categories. Another warning names a column of numbers whose cells have
leading zeros, which are then lost.

`csv_format.py` detects the format and decimal point first; `csv_cells.py` parses the cells.

Callers: `csv.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.csv_cells import parse_blocks, place
from elasticdl.data.odd_values import OddValues, because_of
from elasticdl.data.table_times import are_times
from elasticdl.data.wording import listed
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.csv_index import CSVFile, CSVIndex
    from elasticdl.data.odd_values import OddValue

_log = logging.getLogger("elasticdl")

INFERRED = {str(kind): kind for kind in (
    pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.binary(),
)}  # fmt: skip
"""Possible types of columns without a schema, by their names in an index."""

# Types of columns of dates, without a time zone.
_DATES = {pa.date32(), pa.timestamp("s"), pa.timestamp("ns")}

# Of so few different values, words that repeat are classes, such as 1, 2, 3 and "more".
_MAX_CLASSES = 20


def arrow_types(files: Sequence[tuple[CSVFile, CSVIndex]]) -> dict[str, pa.DataType]:
    """Return for each column a type that fits its cells in all files; columns of text are `binary`.

    Raises:
        SchemaError: The files have different columns.
        DataError: A file cannot be read.
    """
    first, index = files[0]
    types = dict.fromkeys(index.header, pa.null())
    num_rows = sum(other.firsts[-1] for _, other in files)
    odd = {name: OddValues(num_rows) for name in types}
    for file, other in files:
        if set(other.header) != set(types):
            raise SchemaError(
                f"{file.uri} has the columns {listed(other.header)}; {first.uri} has "
                f"{listed(index.header)}. Files that are read together need the same columns, "
                "unless data_schema() names those that are used."
            )
        for block in range(len(other.firsts) - 1):
            table = parse_blocks(file, other, (block, block + 1), None)
            for name in types:
                column = table.column(name).combine_chunks()
                if pa.types.is_timestamp(column.type) and not are_times(column):
                    column = column.cast(pa.string())
                types[name] = _wider(types[name], column.type)
                odd[name].add(column, (file, other, block), other.format.decimal)
    for name, kind in types.items():
        if kind == pa.binary() and (found := odd[name].found()):
            _warn_of(name, found)
    _warn_of_zeros([name for name, kind in types.items() if kind == pa.int64()], first, index)
    return types


def _warn_of_zeros(names: Sequence[str], file: CSVFile, index: CSVIndex) -> None:
    """Warn that leading zeros, such as those of an article number, are lost in columns of numbers.

    Args:
        names: Columns of whole numbers.
        file: The first file, whose first block is searched.
        index: Its index.
    """
    if not names or not index.firsts[-1]:
        return
    cells = parse_blocks(file, index, (0, 1), dict.fromkeys(names, pa.string()))
    for name in names:
        row = pc.index(pc.match_substring_regex(cells.column(name), r"^\s*[+-]?0\d"), True).as_py()
        if row >= 0:
            _log.warning(
                f"Column {name!r} is read as numbers, so leading zeros are lost: "
                f"{cells.column(name)[row].as_py()!r} ({place(file, index, row)}) is "
                f"{int(cells.column(name)[row].as_py())}. To keep them, read the file as a "
                f'DataFrame: data=pandas.read_csv(..., dtype={{"{name}": str}}).'
            )


def _warn_of(name: str, odd: OddValue) -> None:
    """Warn that a column is text because of a few odd cells, and name the first of them.

    There is no warning if its cells look like class names: few distinct values, each repeated.
    """
    file, index, block = odd.batch
    cells = parse_blocks(file, index, (block, block + 1), {name: pa.string()}).column(name)
    value = cells[odd.row].as_py()
    counts = pc.value_counts(cells)
    is_word = any(character.isalpha() for character in value)
    if is_word and len(counts) <= _MAX_CLASSES and pc.min(counts.field("counts")).as_py() > 1:
        return
    where = place(file, index, index.firsts[block] + odd.row)
    _log.warning(f"Column {name!r} is read as text {because_of(odd, value, where)}")


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for a column with cells of two types; `binary` (text) if no other fits both."""
    kinds = {one, other} - {pa.null()}
    if not kinds:
        return pa.null()
    if len(kinds) == 1:
        kind = kinds.pop()
        return pa.binary() if pa.types.is_string(kind) else kind
    if kinds == {pa.int64(), pa.float64()}:
        return pa.float64()
    if kinds <= _DATES:
        return pa.timestamp("ns") if pa.timestamp("ns") in kinds else pa.timestamp("s")
    return pa.binary()
