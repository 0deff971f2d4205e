"""CSV files: lines with a header as records, read by block.

Opening reads each file once, from start to end, to find the positions of its rows (about a gigabyte
a second from memory; Parquet needs no such pass). After that, a range reads and parses the blocks
it touches; each thread keeps the block it read last.

With a schema, cells are read with the types of its fields. Without one, the type of a column fits
all its cells: integers are tried before floating-point numbers, and these before text. Inferring
the types reads the files again, the first time they are needed. An index may contain the inferred
types: workers then do not have to infer them again, and cannot arrive at different types.

`table.py` turns columns into fields, `csv_index.py` finds the starts of rows.

Callers: `sources.py`.
"""

from __future__ import annotations

import functools
import re
import threading
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from elasticdl.data.counted_file import CountedFile
from elasticdl.data.csv_index import (
    BLOCK_BYTES,
    CSVIndex,
    index_rows,
    read_header,
    row_starts,
    unpack,
)
from elasticdl.data.data_index import DataIndex, entry_of, open_by_index
from elasticdl.data.field import STRING
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.find_files import some
from elasticdl.data.record_source import RecordFile
from elasticdl.data.stored_file import open_stored
from elasticdl.data.table import TableUnit, columns_of, decode_table, encode_table
from elasticdl.data.units import Units, is_remote, unit_bytes
from elasticdl.data.wording import counted, listed, record_range, shown
from elasticdl.errors import CorruptDataError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.field import Field
    from elasticdl.data.schema import Schema
    from elasticdl.data.stored_file import StoredFile

_Types = dict[str, pa.DataType]

# Possible types of columns without a schema, by their names in an index.
_INFERRED = {str(kind): kind for kind in (
    pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.binary(),
)}  # fmt: skip

# Text whose empty cells are missing values; in other text, an empty cell is an empty text.
_MAY_BE_EMPTY = pa.large_binary()

# pyarrow's message about a cell it could not convert.
_CELL = re.compile(r"CSV column #(\d+): Row #(\d+): .*?invalid value '(.*)'", re.DOTALL)


# Smaller units take longer to call than to parse.
_UNIT_BYTES = 1 << 20
_CELL_BYTES = 8


class CSVSource:
    """Rows of CSV files; follows the laws of `RecordSource`.

    Args:
        uris: Files in reading order; each starts with the names of its columns.
        index: An existing index of the files: files in it are not read when opening.

    Raises:
        SchemaError: A file has no header.
        CorruptDataError: A quote is not closed, or the index is invalid.
        DataError: A file cannot be read.
    """

    def __init__(self, uris: Sequence[str], index: DataIndex | None = None) -> None:
        self._files = open_by_index(uris, index, unpack, _open)
        self._numbering = Numbering(
            [RecordFile(file.uri, rows.firsts[-1]) for file, rows in self._files]
        )
        # The blocks (first, stop) of each unit of a file.
        blocks = max(_UNIT_BYTES, unit_bytes([file.uri for file, _ in self._files])) // BLOCK_BYTES
        self._units = [
            [(first, min(first + blocks, last)) for first in range(0, last, blocks)]
            for last in (len(rows.firsts) - 1 for _, rows in self._files)
        ]
        # The number of the first unit of each file, counted over all files.
        self._first_units = [0, *accumulate(len(units) for units in self._units)]
        self._types = _types_in(index, uris)
        self._here = _OfThisThread()

    @property
    def files(self) -> Sequence[RecordFile]:
        """The files in reading order."""
        return self._numbering.files

    @property
    def num_records(self) -> int:
        """Number of rows in all files, without headers."""
        return self._numbering.num_records

    def index(self) -> DataIndex:
        """Return an index with the positions of the rows; see `data_index.py`."""
        files = [entry_of(file, rows.firsts[-1], rows.pack()) for file, rows in self._files]
        types = self._types
        return DataIndex(
            "csv",
            tuple(files),
            None if types is None else tuple((name, str(kind)) for name, kind in types.items()),
        )

    def columns(self, file_index: int) -> Sequence[str]:
        """Return the names of the columns of one file, in order."""
        return self._files[file_index][1].header

    def rows_as_stored(self, file_index: int) -> Iterator[bytes]:
        """Yield what precedes the first row of a file, its header, then each row with its end.

        Raises:
            DataError: The file cannot be read, or has changed.
        """
        file, index = self._files[file_index]
        yield file.read(0, index.offsets[0])
        for start, stop in pairwise(index.offsets):
            data = file.read(start, stop)
            for first, last in pairwise([*row_starts(data), len(data)]):
                yield data[first:last]

    def infer_types(self) -> None:
        """Infer the types of columns without a schema; see `data_index.py`.

        Raises:
            SchemaError: The files have different columns.
            DataError: A file cannot be read.
        """
        if self._types is None:
            # From all files, so that a record is the same whatever range it is read in.
            self._types = _inferred_types(self._files)

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return rows `start` to `stop` (exclusive) as serialized `tf.Example`s.

        Raises:
            SchemaError: A cell is empty, or a row has another number of cells than the header.
            IndexError: The range is not within 0 .. num_records.
        """
        records: list[bytes] = []
        for table, where in self._tables(start, stop, None):
            records += encode_table(table, where)
        return records

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return rows `start` to `stop` (exclusive), decoded.

        Raises:
            SchemaError: A row does not fit the schema or the header; the message names file,
                record and column.
            IndexError: The range is not within 0 .. num_records.
        """
        records: list[Record] = []
        for table, where in self._tables(start, stop, schema):
            records += decode_table(table, schema, where)
        return records

    def units(self, schema: Schema | None) -> Units:
        """Return ranges of rows that are worth reading at once; see `units.UnitSource`."""
        sizes = [
            index.firsts[stop] - index.firsts[first]
            for (_, index), units in zip(self._files, self._units, strict=True)
            for first, stop in units
        ]
        memory_bytes = 0
        for file, index in self._files:
            types = [] if schema is None else list(_types_of(schema, index.header).values())
            # Texts take about their size in the file; without a schema any column may be text.
            is_text = {pa.binary(), _MAY_BE_EMPTY} & set(types)
            texts = file.size_bytes if schema is None or is_text else 0
            columns = len(index.header) if schema is None else len(types)
            memory_bytes += texts + _CELL_BYTES * columns * index.firsts[-1]
        remote = is_remote([file.uri for file, _ in self._files])
        return Units(np.array(sizes, np.int64), memory_bytes, remote)

    def read_unit(self, index: int, schema: Schema | None) -> TableUnit:
        """Return a range of rows, numbered over all files; see `units.UnitSource`.

        Raises:
            SchemaError: A cell does not fit the schema.
        """
        file_index = bisect_right(self._first_units, index) - 1
        file, rows = self._files[file_index]
        blocks = self._units[file_index][index - self._first_units[file_index]]
        return TableUnit(_read(file, rows, blocks, self._types_for(schema, rows)))

    def joined(self, units: Iterable[TableUnit], memory_bytes: int) -> TableUnit | None:
        """Return all units as one, if their columns are equal; see `units.UnitSource`."""
        del memory_bytes
        return TableUnit.joined([*units])

    def _tables(
        self, start: int, stop: int, schema: Schema | None
    ) -> Iterator[tuple[pa.Table, Callable[[int], str]]]:
        """Yield the rows of a range, with a function that names the i-th of them in messages."""
        at = start
        for part in self._numbering.split(start, stop):
            firsts = self._files[part.file_index][1].firsts
            row = part.start
            while row < part.stop:
                index = bisect_right(firsts, row) - 1
                end = min(part.stop, firsts[index + 1])
                block = self._block(part.file_index, index, schema)
                rows = block.slice(row - firsts[index], end - row)
                yield rows, functools.partial(self._name, at)
                at += end - row
                row = end

    def _name(self, first: int, row: int) -> str:
        return self._numbering.name(first + row)

    def _block(self, file_index: int, block_index: int, schema: Schema | None) -> pa.Table:
        here = self._here
        key = (file_index, block_index, schema)
        if here.key != key:
            file, index = self._files[file_index]
            here.table = _read(
                file, index, (block_index, block_index + 1), self._types_for(schema, index)
            )
            here.key = key
        return here.table

    def _types_for(self, schema: Schema | None, index: CSVIndex) -> _Types:
        if schema is not None:
            return _types_of(schema, index.header)
        self.infer_types()
        assert self._types is not None  # noqa: S101 - just inferred
        return self._types

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_here"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _here=_OfThisThread())


class _OfThisThread(threading.local):
    """The block that a thread read last."""

    def __init__(self) -> None:
        self.key: tuple[int, int, Schema | None] | None = None
        self.table: Any = None


def _open(uri: str) -> tuple[StoredFile, CSVIndex]:
    file = open_stored(uri)
    return file, index_rows(file)


# --- types of cells ----------------------------------------------------------------------------


def _types_of(schema: Schema, header: Sequence[str]) -> _Types:
    """Return the types in which to read the columns of a schema's fields."""
    parts = {field: columns_of(field, header) for field in schema.fields}
    types = {name: _type_of(field) for field, names in parts.items() for name in names}
    if not all(parts.values()):
        # With all columns read, the message about the missing one can list what there is.
        types |= {name: pa.binary() for name in header if name not in types}
    return types


def _type_of(field: Field) -> pa.DataType:
    if field.dtype == STRING or field.time:
        return _MAY_BE_EMPTY if field.nullable else pa.binary()
    if field.dtype.kind == "f":
        return pa.float64()
    # A bool may be written as true or as 1; the range of other integers is checked afterwards.
    return {"bool": pa.bool_(), "uint64": pa.uint64()}.get(field.dtype.name, pa.int64())


def _types_in(index: DataIndex | None, uris: Sequence[str]) -> _Types | None:
    """Return the column types in an index; None if it has none, or is of other files.

    Raises:
        CorruptDataError: A type is unknown.
    """
    # The types of columns depend on all files that are read together.
    if index is None or index.types is None or index.uris != list(uris):
        return None
    for name, kind in index.types:
        if kind not in _INFERRED:
            raise CorruptDataError(
                f"The index of {some(uris)}", 0, f"one of the types {listed([*_INFERRED])}",
                f"{kind!r} of the column {name!r}",
            )  # fmt: skip
    return {name: _INFERRED[kind] for name, kind in index.types}


def _inferred_types(files: Sequence[tuple[StoredFile, CSVIndex]]) -> _Types:
    first, index = files[0]
    types = dict.fromkeys(index.header, pa.null())
    for file, other in files:
        if set(other.header) != set(types):
            raise SchemaError(
                f"{file.uri} has the columns {listed(other.header)}; {first.uri} has "
                f"{listed(index.header)}. Files that are read together need the same columns, "
                "unless data_schema() names those that are used."
            )
        for block in range(len(other.firsts) - 1):
            table = _parse(file, other, (block, block + 1), None)
            for name in types:
                types[name] = _wider(types[name], table.schema.field(name).type)
    return types


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that fits the cells of both types; text, if there is no other."""
    kinds = {one, other} - {pa.null()}
    if not kinds:
        return pa.null()
    if len(kinds) == 1 and kinds <= {pa.bool_(), pa.int64(), pa.float64()}:
        return kinds.pop()
    return pa.float64() if kinds == {pa.int64(), pa.float64()} else pa.binary()


# --- reading a block ---------------------------------------------------------------------------


def _read(file: StoredFile, index: CSVIndex, blocks: tuple[int, int], types: _Types) -> pa.Table:
    """Return the rows of some blocks (first, stop), with cells of the given types.

    Raises:
        SchemaError: A cell has another type.
    """
    try:
        return _with_nulls(_parse(file, index, blocks, types))
    except pa.ArrowInvalid:
        # 3.0 is an integer, too; whether all values are is checked where the field is known.
        relaxed = {name: _relaxed(arrow_type) for name, arrow_type in types.items()}
    flags: list[str] = []
    while True:
        try:
            table = _parse(file, index, blocks, relaxed | dict.fromkeys(flags, pa.bool_()))
        except pa.ArrowInvalid as error:
            name = _flag_column(error, index, relaxed, flags)
            if name is None:
                raise _wrong_cell(file, index, blocks, types, error) from None
            # true and false are numbers, too.
            flags.append(name)
        else:
            break
    for name in flags:
        at = table.column_names.index(name)
        table = table.set_column(at, name, table.column(at).cast(pa.float64()))
    return _with_nulls(table)


def _with_nulls(table: pa.Table) -> pa.Table:
    """Return the table with nulls for empty cells of text that may be missing."""
    for at, field in enumerate(table.schema):
        if field.type == _MAY_BE_EMPTY:
            column = table.column(at)
            filled = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
            table = table.set_column(at, field.name, filled)
    return table


def _flag_column(
    error: pa.ArrowInvalid, index: CSVIndex, types: _Types, known: Sequence[str]
) -> str | None:
    """Return the column of numbers that contains true or false, if that is the error."""
    cell = _CELL.search(str(error))
    if cell is None or cell[3].strip().lower() not in ("true", "false"):
        return None
    name = index.header[int(cell[1])]
    return name if name not in known and types[name] == pa.float64() else None


def _wrong_cell(
    file: StoredFile,
    index: CSVIndex,
    blocks: tuple[int, int],
    types: _Types,
    error: pa.ArrowInvalid,
) -> SchemaError:
    cell = _CELL.search(str(error))
    if cell is None:
        first, last = index.firsts[blocks[0]], index.firsts[blocks[1]] - 1
        return SchemaError(f"{file.uri}, {record_range(first, last)}: {error}")
    name = index.header[int(cell[1])]
    record = index.firsts[blocks[0]] + int(cell[2]) - 1
    expected = {pa.bool_(): "true, false, 1 or 0"}.get(types[name], "a number")
    return SchemaError(
        f"{file.uri}, record {record}: column {name!r} holds {shown(cell[3])}; data_schema() "
        f"says {expected}. Correct the cell, or the dtype in data_schema()."
    )


def _relaxed(arrow_type: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_integer(arrow_type) else arrow_type


def _check_header(file: StoredFile, index: CSVIndex) -> None:
    """Check that a file still has the columns of an existing index.

    Raises:
        DataError: It has other columns.
    """
    if isinstance(file, CountedFile) and not file.is_checked():
        if (header := read_header(file, index.offsets[0])) != index.header:
            raise file.differs(f"the columns {listed(index.header)}", listed(header))
        file.set_checked()


def _parse(
    file: StoredFile,
    index: CSVIndex,
    blocks: tuple[int, int],
    types: Mapping[str, pa.DataType] | None,
) -> pa.Table:
    start, stop = (index.offsets[block] for block in blocks)
    first, past = (index.firsts[block] for block in blocks)
    data = file.read(start, stop)
    _check_header(file, index)
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
            arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
            arrow_csv.ConvertOptions(
                column_types=types, include_columns=list(types) if types is not None else None
            ),
        )
    except pa.ArrowInvalid:
        if not bad:
            raise
        raise SchemaError(
            f"{file.uri}, record {first + bad[0].number - 1}: the row has "
            f"{counted(bad[0].actual_columns, 'cell')}, the header {len(index.header)}: "
            f"{shown(bad[0].text)}. Put text that contains commas in quotes."
        ) from None
    if table.num_rows != past - first:
        if isinstance(file, CountedFile):
            raise file.differs(counted(past - first, "row"), str(table.num_rows))
        raise CorruptDataError(
            file.uri,
            start,
            f"{counted(past - first, 'row')}, as when it was opened",
            f"{table.num_rows}; it was changed in the meantime",
        )
    return table
