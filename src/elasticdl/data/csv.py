"""CSV files as a record source: each row is a record, and files are read block by block.

Opening reads each file once, from start to end, to find the positions of its rows (about a gigabyte
a second from memory; Parquet needs no such pass). After that, a range reads and parses the blocks
it touches; each thread keeps the block it read last.

Delimiter, encoding and decimal point are detected from the file; columns of a file without a header
get generated names. Opening a file logs these assumptions.

With a schema, cells are read with the types of its fields. Without one, the type of a column fits
all its cells: integers are tried before floating-point numbers, and these before strings. Inferring
the types reads the files again, the first time they are needed. An index may contain the inferred
types: workers then do not have to infer them again, and cannot arrive at different types.

`csv_format.py` detects how a file is written, `csv_index.py` finds the starts of rows,
`csv_cells.py` parses their cells and names the line of a wrong one, `csv_types.py` infers the types
of columns, `table.py` turns columns into fields.

Callers: `sources.py`.
"""

from __future__ import annotations

import functools
import logging
import threading
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from elasticdl.data.csv_cells import MAY_BE_EMPTY, place, read_blocks
from elasticdl.data.csv_format import notes_on
from elasticdl.data.csv_index import (
    BLOCK_BYTES,
    CSVFile,
    CSVIndex,
    index_rows,
    open_csv,
    row_starts,
    stored_of,
    unpack,
)
from elasticdl.data.csv_types import INFERRED, arrow_types
from elasticdl.data.data_index import DataIndex, entry_of, open_by_index
from elasticdl.data.field import STRING
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.find_files import some
from elasticdl.data.indexed_file import IndexedFile
from elasticdl.data.record_source import RecordFile
from elasticdl.data.stored_file import open_stored
from elasticdl.data.table import TableUnit, columns_of, decode_table, encode_table
from elasticdl.data.units import Units, is_remote, unit_bytes
from elasticdl.data.wording import listed
from elasticdl.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.field import Field
    from elasticdl.data.schema import Schema

_log = logging.getLogger("elasticdl")

_Types = dict[str, pa.DataType]

# For smaller units, the overhead of a call exceeds the parsing.
_UNIT_BYTES = 1 << 20
_CELL_BYTES = 8
# To reach a position in a compressed file, up to a block of it is decompressed as well.
_INFLATED_UNIT_BYTES = 8 << 20


class CSVSource:
    """Rows of CSV files; implements `RecordSource`.

    Args:
        uris: Files in reading order.
        index: An existing index of some or all of the files. Files that it contains are not read
            when the source is opened.

    Raises:
        SchemaError: A file is empty, its delimiter or its header cannot be determined, two columns
            have the same name, or a quote is not closed.
        CorruptDataError: The index is invalid, a gzip file is damaged, or a row is longer than
            `csv_index.MAX_ROW_BYTES`.
        DataError: A file cannot be read.
    """

    def __init__(self, uris: Sequence[str], index: DataIndex | None = None) -> None:
        self._files = open_by_index(uris, index, unpack, _open)
        self._numbering = Numbering(
            [RecordFile(file.uri, rows.firsts[-1]) for file, rows in self._files]
        )
        # The blocks (first, stop) of each unit of a file.
        at_once = max(_UNIT_BYTES, unit_bytes([file.uri for file, _ in self._files]))
        self._units = [
            _units_of(rows, _INFLATED_UNIT_BYTES if rows.format.is_compressed else at_once)
            for _, rows in self._files
        ]
        # The number of the first unit of each file, counted over all files.
        self._first_units = [0, *accumulate(len(units) for units in self._units)]
        self._types = _types_in(index, uris)
        self._arrow_types: _Types | None = None
        self._schema: pa.Schema | None = None
        self._here = _ThreadCache()
        read = [
            (file.uri, rows.format, len(rows.header))
            for file, rows in self._files
            if not isinstance(stored_of(file), IndexedFile)
        ]
        for note in notes_on(read):
            _log.warning(note)

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
        files = [
            entry_of(stored_of(file), rows.firsts[-1], rows.pack()) for file, rows in self._files
        ]
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
        """Yield the bytes before the first row (the header), then each row, to copy them unchanged.

        A row includes its line end.

        Raises:
            DataError: The file cannot be read, or has changed.
        """
        file, index = self._files[file_index]
        yield file.read(0, index.offsets[0])
        for start, stop in pairwise(index.offsets):
            data = file.read(start, stop)
            for first, last in pairwise([*row_starts(data, index.format), len(data)]):
                yield data[first:last]

    def infer_types(self) -> None:
        """Infer the types of all columns from their cells, for reading without a schema.

        `index` then includes the types; see `data_index.py`.

        Raises:
            SchemaError: The files have different columns.
            DataError: A file cannot be read.
        """
        if self._types is None:
            # For records, dates and times are strings.
            self._types = {
                name: kind if str(kind) in INFERRED else pa.binary()
                for name, kind in self._inferred().items()
            }

    def _inferred(self) -> _Types:
        if self._arrow_types is None:
            # From all files, so that a record is the same whatever range it is read in.
            self._arrow_types = arrow_types(self._files)
        return self._arrow_types

    def arrow_schema(self) -> pa.Schema:
        """Return names and types of all columns; see `record_source.TableSource`."""
        if self._schema is None:
            types = {
                name: pa.string() if kind == pa.binary() else kind
                for name, kind in self._inferred().items()
            }
            self._schema = pa.schema(types.items())
        return self._schema

    def arrow_tables(self) -> Iterator[pa.Table]:
        """Yield all rows as Arrow tables, in order; see `record_source.TableSource`."""
        schema = self.arrow_schema()
        types = {
            field.name: MAY_BE_EMPTY if pa.types.is_string(field.type) else field.type
            for field in schema
        }
        for file, index in self._files:
            for block in range(len(index.firsts) - 1):
                table = read_blocks(file, index, (block, block + 1), types)
                yield table.select(schema.names).cast(schema)

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return rows `start` to `stop` (exclusive) as serialized `tf.Example`s.

        Raises:
            SchemaError: A cell is empty, or a row and the header differ in their number of cells.
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
        """Divide the rows into units, ranges that are read as a whole; see `units.UnitSource`."""
        sizes = [
            index.firsts[stop] - index.firsts[first]
            for (_, index), units in zip(self._files, self._units, strict=True)
            for first, stop in units
        ]
        memory_bytes = 0
        for _, index in self._files:
            types = [] if schema is None else list(_types_of(schema, index.header).values())
            # Strings take about their size in the file; without a schema any column may have them.
            is_text = {pa.binary(), MAY_BE_EMPTY} & set(types)
            texts = index.offsets[-1] if schema is None or is_text else 0
            columns = len(index.header) if schema is None else len(types)
            memory_bytes += texts + _CELL_BYTES * columns * index.firsts[-1]
        remote = is_remote([file.uri for file, _ in self._files])
        return Units(np.array(sizes, np.int64), memory_bytes, remote)

    def read_unit(self, index: int, schema: Schema | None) -> TableUnit:
        """Return a unit (a range of rows) by its number over all files; see `units.UnitSource`.

        Raises:
            SchemaError: A cell does not fit the schema.
        """
        file_index = bisect_right(self._first_units, index) - 1
        file, rows = self._files[file_index]
        blocks = self._units[file_index][index - self._first_units[file_index]]
        return TableUnit(self._read(file, rows, blocks, schema))

    def joined(self, units: Iterable[TableUnit], memory_bytes: int) -> TableUnit | None:
        """Join all units into one, from which rows are picked faster; see `UnitSource`.

        Returns None if the units differ in their columns.
        """
        del memory_bytes
        return TableUnit.joined([*units])

    def _tables(
        self, start: int, stop: int, schema: Schema | None
    ) -> Iterator[tuple[pa.Table, Callable[[int], str]]]:
        """Yield the rows of a range as tables, none of which spans two blocks.

        Args:
            start: First row, counted over all files.
            stop: One past the last row.
            schema: Schema whose fields determine the columns to read. None: read all columns.

        Yields:
            A table, and a function that returns the name of its i-th row (file and number).
        """
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
        part = self._numbering.split(first + row, first + row + 1)[0]
        return place(*self._files[part.file_index], part.start)

    def _block(self, file_index: int, block_index: int, schema: Schema | None) -> pa.Table:
        here = self._here
        key = (file_index, block_index, schema)
        if here.key != key:
            file, index = self._files[file_index]
            here.table = self._read(file, index, (block_index, block_index + 1), schema)
            here.key = key
        return here.table

    def _read(
        self, file: CSVFile, index: CSVIndex, blocks: tuple[int, int], schema: Schema | None
    ) -> pa.Table:
        is_declared = schema is not None and any(field.is_declared for field in schema.fields)
        types = self._types_for(schema, index)
        return read_blocks(file, index, blocks, types, is_declared=is_declared)

    def _types_for(self, schema: Schema | None, index: CSVIndex) -> _Types:
        if schema is not None:
            return _types_of(schema, index.header)
        self.infer_types()
        assert self._types is not None  # noqa: S101 - just inferred
        return self._types

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_here"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _here=_ThreadCache())


class _ThreadCache(threading.local):
    """The block that this thread read last, kept because the next range often starts in it."""

    def __init__(self) -> None:
        self.key: tuple[int, int, Schema | None] | None = None
        self.table: Any = None


def _open(uri: str) -> tuple[CSVFile, CSVIndex]:
    file = open_csv(open_stored(uri))
    return file, index_rows(file)


def _units_of(rows: CSVIndex, at_once: int) -> list[tuple[int, int]]:
    """Divide the blocks of a file into units, ranges of rows that are read as a whole.

    Args:
        rows: Index of the file.
        at_once: Bytes in a unit, a multiple of `BLOCK_BYTES`.

    Returns:
        For each unit, its first block and one past its last block.
    """
    last, blocks = len(rows.firsts) - 1, at_once // BLOCK_BYTES
    return [(first, min(first + blocks, last)) for first in range(0, last, blocks)]


# --- types of cells ----------------------------------------------------------------------------


def _types_of(schema: Schema, header: Sequence[str]) -> _Types:
    """Return the columns to read for a schema, each with the Arrow type of its cells.

    These are all columns of the file if a field of the schema is not among them: the error about
    this field, which is raised when the rows are decoded, can then list the existing columns.

    Args:
        schema: The fields to read.
        header: Names of the columns of the file.
    """
    parts = {field: columns_of(field, header) for field in schema.fields}
    types = {name: _type_of(field) for field, names in parts.items() for name in names}
    if not all(parts.values()):
        # With all columns read, the message about the missing one can list what there is.
        types |= {name: pa.binary() for name in header if name not in types}
    return types


def _type_of(field: Field) -> pa.DataType:
    if field.dtype == STRING or field.time:
        return MAY_BE_EMPTY if field.nullable else pa.binary()
    if field.dtype.kind == "f":
        return pa.float64()
    # A bool may be written as true or as 1; the range of other integers is checked afterwards.
    return {"bool": pa.bool_(), "uint64": pa.uint64()}.get(field.dtype.name, pa.int64())


def _types_in(index: DataIndex | None, uris: Sequence[str]) -> _Types | None:
    """Return the inferred column types that an index contains.

    Args:
        index: The index, if there is one.
        uris: Files to read. Types depend on the cells of all files, so the types in an index are
            valid only if it describes exactly these files.

    Returns:
        Column -> type; None if the index contains no types for exactly these files.

    Raises:
        CorruptDataError: A type is unknown.
    """
    # The types of columns depend on all files that are read together.
    if index is None or index.types is None or index.uris != list(uris):
        return None
    for name, kind in index.types:
        if kind not in INFERRED:
            raise CorruptDataError(
                f"The index of {some(uris)}", 0, f"one of the types {listed([*INFERRED])}",
                f"{kind!r} of the column {name!r}",
            )  # fmt: skip
    return {name: INFERRED[kind] for name, kind in index.types}
