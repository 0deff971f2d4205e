"""Parquet files: rows of tables as records, read by row group.

Opening reads the footer of each file, which has the number of rows of each row group. A range
reads the row groups it touches, and of these only the columns in the schema; each thread keeps
the row group it read last, so that consecutive small ranges cost one read per row group. Page
checksums are verified where the writer stored them; without them, a damaged value is found only
if it breaks the page's encoding.

`table.py` turns columns into fields.

Callers: `sources.py`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl.data.class_names import class_columns_of
from elasticdl.data.data_index import DataIndex, entry_of, open_by_index
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.indexed_file import IndexedFile
from elasticdl.data.record_source import RecordFile
from elasticdl.data.stored_file import filesystem, local_path, open_stored
from elasticdl.data.table import TableUnit, columns_of, decode_table, encode_table
from elasticdl.data.table_source import common_schema
from elasticdl.data.units import Units, is_remote
from elasticdl.data.wording import counted
from elasticdl.errors import CorruptDataError, DataError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.data_index import FileEntry
    from elasticdl.data.schema import Schema
    from elasticdl.data.stored_file import StoredFile

_MAGIC = b"PAR1"
_FOOTER_END_BYTES = 8


class RowGroup(NamedTuple):
    """A row group, as described in the footer of its file.

    Attributes:
        offset_bytes: Start of its first column.
        size_bytes: Size of its columns as stored.
        num_rows: Number of rows.
        compression: Name of its codec in Parquet.
        memory_bytes: Approximate memory of each column.
    """

    offset_bytes: int
    size_bytes: int
    num_rows: int
    compression: str
    memory_bytes: tuple[int, ...]


class _File(NamedTuple):
    """Content of a file's footer.

    Attributes:
        stored: The file.
        columns: Names of its columns.
        row_groups: Its row groups, in order.
        firsts: Number of each row group's first row, and one past the last row.
    """

    stored: StoredFile
    columns: tuple[str, ...]
    row_groups: tuple[RowGroup, ...]
    firsts: tuple[int, ...]

    @property
    def uri(self) -> str:
        return self.stored.uri


class ParquetSource:
    """Rows of Parquet files; implements `RecordSource`.

    Args:
        uris: Files in reading order.
        index: An existing index of the files: footers of files in it are not read when opening.

    Raises:
        CorruptDataError: A footer is damaged or missing.
        DataError: A file cannot be read.
    """

    def __init__(self, uris: Sequence[str], index: DataIndex | None = None) -> None:
        self._files = open_by_index(uris, index, _unpacked, _open)
        self._numbering = Numbering([RecordFile(file.uri, file.firsts[-1]) for file in self._files])
        # The number of the first row group of each file, counted over all files.
        self._first_groups = [0, *accumulate(len(file.row_groups) for file in self._files)]
        self._here = _ThreadCache()

    @property
    def files(self) -> Sequence[RecordFile]:
        """The files in reading order."""
        return self._numbering.files

    @property
    def num_records(self) -> int:
        """Number of rows in all files."""
        return self._numbering.num_records

    def row_groups(self, file_index: int) -> Sequence[RowGroup]:
        """Return the row groups of one file, in order."""
        return self._files[file_index].row_groups

    def columns(self, file_index: int) -> Sequence[str]:
        """Return the names of the columns of one file, in order."""
        return self._files[file_index].columns

    def tables(self, file_index: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the row groups of one file, with their stored types.

        Args:
            file_index: Number of the file.
            columns: Names of the columns to read. None: read all columns.

        Raises:
            CorruptDataError: A row group is damaged.
        """
        file = self._files[file_index]
        for index in range(len(file.row_groups)):
            yield _read(file, index, file.columns if columns is None else tuple(columns))

    def index(self) -> DataIndex:
        """Return an index with the positions of the row groups; see `data_index.py`."""
        return DataIndex("parquet", tuple(map(_entry, self._files)))

    def class_columns(self) -> dict[str, tuple[str, ...]]:
        """Return the class names stored in the first file; see `record_source.HasClassColumns`."""
        return class_columns_of(_schema(self._files[0])) if self._files else {}

    def arrow_schema(self) -> pa.Schema:
        """Return names and types of all columns; see `record_source.TableSource`."""
        return common_schema([(file.uri, _schema(file)) for file in self._files])

    def arrow_tables(self) -> Iterator[pa.Table]:
        """Yield all rows as Arrow tables, in order; see `record_source.TableSource`."""
        schema = self.arrow_schema()
        for index in range(len(self._files)):
            for table in self.tables(index):
                yield table.select(schema.names).cast(schema)

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return rows `start` to `stop` (exclusive) as serialized `tf.Example`s.

        Raises:
            CorruptDataError: A row group of this range is damaged.
            SchemaError: A cell is empty, or a column is neither numbers nor strings.
            IndexError: The range is not within 0 .. num_records.
        """
        records: list[bytes] = []
        for table, where in self._tables(start, stop, None):
            records += encode_table(table, where)
        return records

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return rows `start` to `stop` (exclusive), decoded.

        Raises:
            CorruptDataError: A row group of this range is damaged.
            SchemaError: A row does not fit the schema; the message names file, record and column.
            IndexError: The range is not within 0 .. num_records.
        """
        records: list[Record] = []
        for table, where in self._tables(start, stop, schema):
            records += decode_table(table, schema, where)
        return records

    def units(self, schema: Schema | None) -> Units:
        """Return the row groups as units, each read as a whole; see `units.UnitSource`."""
        memory_bytes = 0
        for file in self._files:
            wanted = set(_wanted(file, schema))
            for group in file.row_groups:
                columns = zip(file.columns, group.memory_bytes, strict=True)
                memory_bytes += sum(size for name, size in columns if name in wanted)
        sizes = [group.num_rows for file in self._files for group in file.row_groups]
        remote = is_remote([file.uri for file in self._files])
        return Units(np.array(sizes, np.int64), memory_bytes, remote)

    def read_unit(self, index: int, schema: Schema | None) -> TableUnit:
        """Return a row group by its number over all files; see `units.UnitSource`.

        Raises:
            CorruptDataError: The row group is damaged.
        """
        file_index = bisect_right(self._first_groups, index) - 1
        file = self._files[file_index]
        return TableUnit(_read(file, index - self._first_groups[file_index], _wanted(file, schema)))

    def joined(self, units: Iterable[TableUnit], memory_bytes: int) -> TableUnit | None:
        """Join all units into one, from which rows are picked faster; see `UnitSource`.

        Returns None if their columns differ.
        """
        del memory_bytes
        return TableUnit.joined([*units])

    def _tables(
        self, start: int, stop: int, schema: Schema | None
    ) -> Iterator[tuple[pa.Table, Callable[[int], str]]]:
        """Yield the rows of a range as tables, none of which spans two row groups.

        Args:
            start: First row, counted over all files.
            stop: One past the last row.
            schema: Schema that selects the columns. None: read all columns.

        Yields:
            A table, and a function that returns the name of its i-th row (file and number).
        """
        at = start
        for part in self._numbering.split(start, stop):
            file = self._files[part.file_index]
            row = part.start
            while row < part.stop:
                index = bisect_right(file.firsts, row) - 1
                end = min(part.stop, file.firsts[index + 1])
                group = self._row_group(file, index, _wanted(file, schema))
                rows = group.slice(row - file.firsts[index], end - row)
                yield rows, functools.partial(self._name, at)
                at += end - row
                row = end

    def _name(self, first: int, row: int) -> str:
        return self._numbering.name(first + row)

    def _row_group(self, file: _File, index: int, columns: tuple[str, ...]) -> pa.Table:
        here = self._here
        key = (file.uri, index, columns)
        if here.key != key:
            # The previous one is released first: two row groups may not fit into memory.
            here.key, here.table = None, None
            here.table = _read(file, index, columns)
            here.key = key
        return here.table

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_here"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _here=_ThreadCache())


class _ThreadCache(threading.local):
    """The row group that this thread read last, kept because the next range often starts in it."""

    def __init__(self) -> None:
        self.key: tuple[str, int, tuple[str, ...]] | None = None
        self.table: Any = None


def _wanted(file: _File, schema: Schema | None) -> tuple[str, ...]:
    """Return the columns of a file to read: those in the schema, or all.

    All columns are returned without a schema, or if a field of the schema is missing: the error
    about that field can then name the columns.
    """
    if schema is None:
        return file.columns
    parts = [columns_of(field, file.columns) for field in schema.fields]
    # With all columns read, the message about the missing one can list what there is.
    return tuple(name for part in parts for name in part) if all(parts) else file.columns


def _open(uri: str) -> _File:
    stored = open_stored(uri)
    end = max(stored.size_bytes - _FOOTER_END_BYTES, 0)
    if stored.read(end, stored.size_bytes)[-len(_MAGIC) :] != _MAGIC:
        raise CorruptDataError(
            uri,
            end,
            f"the end of a Parquet file, {_MAGIC!r}",
            "a different end: it may be truncated" if stored.size_bytes else "an empty file",
        )
    with _opened(uri, end, "the footer of a Parquet file") as file:
        metadata = file.metadata
        groups = []
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            columns = [group.column(i) for i in range(group.num_columns)]
            groups.append(
                RowGroup(
                    min((_offset(column) for column in columns), default=0),
                    sum(column.total_compressed_size for column in columns),
                    group.num_rows,
                    columns[0].compression if columns else "",
                    _memory_bytes(file.schema_arrow, columns, group.num_rows),
                )
            )
        names = tuple(file.schema_arrow.names)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise SchemaError(
            f"{uri}: two of its columns are named {twice!r}. Write it with a unique name for each "
            "column."
        )
    return _file(stored, names, tuple(groups))


def _file(stored: StoredFile, columns: tuple[str, ...], row_groups: tuple[RowGroup, ...]) -> _File:
    firsts = (0, *accumulate(group.num_rows for group in row_groups))
    return _File(stored, columns, row_groups, firsts)


def _entry(file: _File) -> FileEntry:
    layout = json.dumps([file.columns, file.row_groups], separators=(",", ":")).encode()
    return entry_of(file.stored, file.firsts[-1], layout)


def _unpacked(entry: FileEntry) -> _File:
    columns, groups = json.loads(entry.layout)
    row_groups = tuple(
        RowGroup(int(offset), int(size), int(rows), str(codec), tuple(map(int, memory)))
        for offset, size, rows, codec, memory in groups
    )
    file = _file(entry.indexed_file(), tuple(map(str, columns)), row_groups)
    if file.firsts[-1] != entry.num_records or min(file.firsts) < 0:
        raise ValueError(f"row groups with {file.firsts[-1]} rows")
    return file


def _memory_bytes(schema: pa.Schema, columns: Sequence[Any], num_rows: int) -> tuple[int, ...]:
    """Estimate the memory that each field of a row group takes, in bytes.

    Args:
        schema: Fields of the file.
        columns: pyarrow's metadata of each column of the row group.
        num_rows: Number of rows in the row group.
    """
    # A field of structs or lists is stored in columns whose paths begin with its name.
    stored = dict.fromkeys(schema.names, 0)
    for column in columns:
        name = column.path_in_schema.split(".")[0]
        stored[name] = stored.get(name, 0) + column.total_uncompressed_size
    return tuple(
        # Repeated values are stored once, so that the stored size of numbers is misleading.
        max(stored[field.name], num_rows * _width_bytes(field.type))
        for field in schema
    )


def _width_bytes(arrow_type: pa.DataType) -> int:
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:
        # For lists and strings, at least the offset of each value.
        return 8


def _offset(column: Any) -> int:
    offset: int = column.data_page_offset
    return min(column.dictionary_page_offset, offset) if column.has_dictionary_page else offset


def _read(file: _File, index: int, columns: tuple[str, ...]) -> pa.Table:
    group = file.row_groups[index]
    try:
        with _opened(file.uri, group.offset_bytes, f"row group {index}") as opened:
            metadata = opened.metadata
            found = (metadata.num_row_groups, metadata.num_rows)
            if found != (len(file.row_groups), file.firsts[-1]):
                raise _differs(file, *found)
            table = opened.read_row_group(index, columns=list(columns), use_threads=False)
    finally:
        # If the file was replaced, that is the error to raise, whatever was read from it.
        file.stored.check()
    if table.num_rows != group.num_rows:
        expected = f"{group.num_rows} rows in row group {index}"
        if isinstance(file.stored, IndexedFile):
            raise file.stored.differs(expected, str(table.num_rows))
        raise CorruptDataError(file.uri, group.offset_bytes, expected, f"{table.num_rows}")
    return table


def _schema(file: _File) -> pa.Schema:
    with _opened(file.uri, file.stored.size_bytes, "the footer of a Parquet file") as opened:
        return opened.schema_arrow


def _differs(file: _File, num_row_groups: int, num_rows: int) -> DataError:
    """Return the error for a file that has changed since its footer was read or indexed.

    Args:
        file: What the index or an earlier read says about the file.
        num_row_groups: Number of row groups in the footer now.
        num_rows: Number of rows in the footer now.
    """
    expected = f"{file.firsts[-1]} rows in {counted(len(file.row_groups), 'row group')}"
    found = f"{num_rows} rows in {counted(num_row_groups, 'row group')}"
    if isinstance(file.stored, IndexedFile):
        return file.stored.differs(expected, found)
    return CorruptDataError(file.uri, file.stored.size_bytes, expected, found)


@contextlib.contextmanager
def _opened(uri: str, offset_bytes: int, expected: str) -> Iterator[Any]:
    """Context manager that opens a Parquet file; yields a `pyarrow.parquet.ParquetFile`.

    Errors in its body, while the file is read, are converted as well.

    Args:
        uri: URI of the file.
        offset_bytes: Position of the part to read, for the error message if it is damaged.
        expected: Name of this part, for the same message.

    Raises:
        CorruptDataError: pyarrow cannot parse it.
        DataError: The file does not exist, or permission is denied.
    """
    try:
        path = local_path(uri)
        if path is not None:
            stream = pa.OSFile(path, "rb")
        else:
            system, path = filesystem(uri)
            stream = system.open(path, "rb")
        with stream:
            yield pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=True)
    except (FileNotFoundError, PermissionError) as error:
        raise DataError(f"{uri} cannot be read: {error.strerror or error}.") from error
    except (pa.ArrowException, OSError) as error:
        # For a damaged page pyarrow raises an OSError.
        found = " ".join(str(error).split()).rstrip(".")
        raise CorruptDataError(uri, offset_bytes, expected, found) from error
