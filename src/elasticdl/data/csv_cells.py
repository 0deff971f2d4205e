"""Parses blocks of CSV rows into Arrow tables, with pyarrow.

Empty cells and words for a missing value, such as NA, become nulls.

`csv_index.py` finds where blocks start, and `csv_format.py` detects the delimiter, encoding and
decimal point. The caller passes the types of the columns.

Callers: `csv.py`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from elasticdl.data.csv_index import (
    CSVFile,
    CSVIndex,
    line_of,
    read_header,
    row_starts,
    stored_of,
)
from elasticdl.data.field import as_text
from elasticdl.data.indexed_file import IndexedFile
from elasticdl.data.table_times import FORMATS, MISSING_WORDS
from elasticdl.data.wording import counted, listed, record_range, shown
from elasticdl.errors import CorruptDataError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Type of strings whose empty cells are missing values; in `binary`, they are empty strings.
MAY_BE_EMPTY = pa.large_binary()

# Errors name the line of rows up to here: to count lines, the file is read from its start.
_MAX_COUNTED_BYTES = 64 << 20

# pyarrow's message about a cell it could not convert.
_CELL = re.compile(r"CSV column #(\d+): Row #(\d+): .*?invalid value '(.*)'", re.DOTALL)


# A number with signs of currencies, percent or thousands, such as "$1,234.50" or "12 %".
_WITH_SIGNS = re.compile(r"[+-]?([$€£¥] ?)?\d+(,\d{3})*(\.\d+)? ?[$€£¥%]?")


def read_blocks(
    file: CSVFile,
    index: CSVIndex,
    blocks: tuple[int, int],
    types: Mapping[str, pa.DataType],
    *,
    is_declared: bool = False,
) -> pa.Table:
    """Read the rows of consecutive blocks, with cells converted to the given types.

    Args:
        file: The file.
        index: Its index.
        blocks: The first block, and one past the last.
        types: Column -> type. If an integer column has cells such as 3.0, the returned table has
            float64 values in it.
        is_declared: Whether the user declared the types in `data_schema()`, for errors.

    Raises:
        SchemaError: A cell does not have the type of its column.
    """
    try:
        return _with_nulls(parse_blocks(file, index, blocks, types))
    except pa.ArrowInvalid:
        # 3.0 is a valid integer too. Fractions are rejected later, where the field is known.
        relaxed = {name: _relaxed(arrow_type) for name, arrow_type in types.items()}
    booleans: list[str] = []
    while True:
        try:
            table = parse_blocks(file, index, blocks, relaxed | dict.fromkeys(booleans, pa.bool_()))
        except pa.ArrowInvalid as error:
            name = _boolean_column(error, index, relaxed, booleans)
            if name is None:
                raise _wrong_cell(
                    file, index, blocks, types, error, is_declared=is_declared
                ) from None
            # true and false are valid in a column of numbers.
            booleans.append(name)
        else:
            break
    for name in booleans:
        at = table.column_names.index(name)
        table = table.set_column(at, name, table.column(at).cast(pa.float64()))
    return _with_nulls(table)


def _with_nulls(table: pa.Table) -> pa.Table:
    """Return the table with nulls in place of empty cells, where an empty cell is a missing value.

    That is so in string columns of the type `MAY_BE_EMPTY`. In columns of the type `binary`, an
    empty cell is an empty string.
    """
    for at, field in enumerate(table.schema):
        if field.type == MAY_BE_EMPTY:
            column = table.column(at)
            filled = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
            table = table.set_column(at, field.name, filled)
    return table


def _boolean_column(
    error: pa.ArrowInvalid, index: CSVIndex, types: Mapping[str, pa.DataType], known: Sequence[str]
) -> str | None:
    """Return the name of the float column in which pyarrow rejected the cell `true` or `false`.

    These words are valid in a column of numbers. `read_blocks` reads the column again as booleans,
    and converts these to numbers.

    Args:
        error: The error that pyarrow raised.
        index: Index of the file.
        types: Column -> type, before such columns were changed to booleans.
        known: Columns that are read as booleans already: an error about one of them has another
            cause.

    Returns:
        Name of the column; None if the error has another cause.
    """
    cell = _CELL.search(str(error))
    if cell is None or cell[3].strip().lower() not in ("true", "false"):
        return None
    name = index.header[int(cell[1])]
    return name if name not in known and types[name] == pa.float64() else None


def _wrong_cell(
    file: CSVFile,
    index: CSVIndex,
    blocks: tuple[int, int],
    types: Mapping[str, pa.DataType],
    error: pa.ArrowInvalid,
    *,
    is_declared: bool,
) -> SchemaError:
    cell = _CELL.search(str(error))
    if cell is None:
        first, last = index.firsts[blocks[0]], index.firsts[blocks[1]] - 1
        return SchemaError(f"{file.uri}, {record_range(first, last)}: {error}")
    name = index.header[int(cell[1])]
    record = index.firsts[blocks[0]] + int(cell[2]) - 1
    expected = {pa.bool_(): "true, false, 1 or 0"}.get(types[name], "a number")
    advice = f", or {as_text(name)}" if is_declared else ""
    missing = (
        'If the value is missing, leave the cell empty; the field needs "nullable": True.'
        if is_declared
        else "If the value is missing and the model accepts missing values (prebuilt models do, "
        "except in the label), leave the cell empty."
    )
    signs = ""
    if types[name] != pa.bool_() and _WITH_SIGNS.fullmatch(cell[3].strip()):
        signs = (
            " If all are written so, remove the signs, in pandas with "
            f"df[{name!r}].str.replace('[$€£¥,% ]', '', regex=True).astype(float)."
        )
    return SchemaError(
        f"{place(file, index, record)}: column {name!r} holds {shown(cell[3])}; expected "
        f"{expected}. Correct the cell{advice}.{signs} {missing}"
    )


def place(file: CSVFile, index: CSVIndex, record: int) -> str:
    """Return `file, line n (record i)` for a record, for an error message.

    Lines are counted from 1, as in an editor, by reading the file up to the record; for records
    far into a large file the line is left out.

    Args:
        file: The file.
        index: Index of the file.
        record: Number of the record in the file, from 0.
    """
    block = bisect_right(index.firsts, record) - 1
    offset = index.offsets[block]
    if offset > _MAX_COUNTED_BYTES:
        return f"{file.uri}, record {record}"
    rows = row_starts(file.read(offset, index.offsets[block + 1]), index.format)
    offset += rows[record - index.firsts[block]]
    line = line_of(file, index.format, offset)
    return f"{file.uri}, line {line} (record {record})"


def _relaxed(arrow_type: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_integer(arrow_type) else arrow_type


def _check_header(file: CSVFile, index: CSVIndex) -> None:
    """Check, once per process, that a file still has the columns that its index lists.

    Does nothing if the file has no header, or was opened without an existing index: the columns
    were then read from the file itself.

    Raises:
        DataError: The columns differ.
    """
    stored = stored_of(file)
    if not isinstance(stored, IndexedFile) or stored.is_checked() or not index.format.has_header:
        return
    if (header := read_header(file, index.offsets[0], index.format)) != index.header:
        raise stored.differs(f"the columns {listed(index.header)}", listed(header))
    stored.set_checked()


def _utf8(file: CSVFile, index: CSVIndex, start: int, stop: int) -> bytes:
    """Return bytes `start` to `stop` of a file, converted to UTF-8.

    Raises:
        CorruptDataError: The bytes are not text in the encoding of the file.
        DataError: The file cannot be read.
    """
    data = file.read(start, stop)
    try:
        return index.format.utf8(data)
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            file.uri, start + error.start, f"text in {index.format.encoding}", error.reason
        ) from None


def parse_blocks(
    file: CSVFile,
    index: CSVIndex,
    blocks: tuple[int, int],
    types: Mapping[str, pa.DataType] | None,
) -> pa.Table:
    """Parse the rows of consecutive blocks with pyarrow.

    `csv_types.py` calls this function to infer types, `read_blocks` to read records. If pyarrow
    rejects a cell, `read_blocks` tries other types, or explains the error to the user.

    Args:
        file: The file.
        index: Its index.
        blocks: The first block, and one past the last.
        types: Column -> type; other columns are skipped. None: infer all types from these rows.

    Raises:
        SchemaError: A row and the header differ in their number of cells.
        pyarrow.ArrowInvalid: A cell does not have the type of its column.
        CorruptDataError: The number of rows is not the one in the index.
        DataError: The file has changed, or cannot be read.
    """
    start, stop = (index.offsets[block] for block in blocks)
    first, past = (index.firsts[block] for block in blocks)
    data = _utf8(file, index, start, stop)
    _check_header(file, index)
    delimiter = index.format.delimiter
    bad: list[arrow_csv.InvalidRow] = []

    def refuse(row: arrow_csv.InvalidRow) -> str:
        bad.append(row)
        return "error"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            # One block, one thread: only then are the numbers of rows reported.
            arrow_csv.ReadOptions(
                use_threads=False, column_names=list(index.header), block_size=len(data) + 1
            ),
            arrow_csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse
            ),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types) if types is not None else None,
                null_values=MISSING_WORDS,
                decimal_point=index.format.decimal,
                timestamp_parsers=[arrow_csv.ISO8601, *FORMATS],
            ),
        )
    except pa.ArrowInvalid:
        if not bad:
            raise
        found = bad[0].actual_columns
        raise SchemaError(
            f"{place(file, index, first + bad[0].number - 1)}: the row has "
            f"{counted(found, 'cell')}, the header {len(index.header)}: {shown(bad[0].text)}. "
            + (
                f"Put text that contains {delimiter!r} in quotes."
                if found > len(index.header)
                else f"Add what is missing; between empty cells, there is a {delimiter!r} too."
            )
        ) from None
    if table.num_rows != past - first:
        if isinstance(stored := stored_of(file), IndexedFile):
            raise stored.differs(counted(past - first, "row"), str(table.num_rows))
        raise CorruptDataError(
            file.uri,
            start,
            f"{counted(past - first, 'row')}, as when it was opened",
            f"{table.num_rows}; it was changed in the meantime",
        )
    return table
