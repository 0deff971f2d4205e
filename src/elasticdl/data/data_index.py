"""Data index: lists files, the number of records in each, and the positions of the records.

    files --a reader opens them--> source --index()--> DataIndex --encode--> bytes
                                      ^                    |
                                      +-- nothing is read -+

The bytes are stored in a file beside the data, or sent to workers.

Opening data means listing it and reading parts of every file, depending on the format. The index
saves that work: a source opened with an index does not access the storage.

Each reader packs the positions of records in its own way, and only that reader can unpack them.
`indexed_file.py` checks that a file has not changed since it was indexed; `index_file.py` stores
indexes in files.

Callers: the readers of this folder, `index_file.py`, `sources.py`, the engines.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from elasticdl.data.formats import Format, readable_formats
from elasticdl.data.indexed_file import IndexedFile
from elasticdl.data.stored_file import StoredFile, open_each
from elasticdl.errors import CorruptDataError

Layout = TypeVar("Layout")

_MAGIC = b"ELDLIDX1"
# Magic, CRC-32 of what follows it, size of the body before compression.
_HEAD = struct.Struct("<8sIQ")
_CHECKED_AT = 12
_JSON_BYTES = struct.Struct("<Q")
_NUMBERS = np.dtype("<i8")
_NUM_COLUMNS = 3
# Limits of the body's size after decompression: this size, or this multiple of the stored size.
# Encoding observes them, so that a small file cannot exhaust a machine's memory.
_FREE_BYTES, _MAX_EXPANSION = 64 << 20, 50


class FileEntry(NamedTuple):
    """Entry of an index for one file.

    Attributes:
        uri: URI of the file.
        size_bytes: Its size.
        version: Version of the file when it was indexed, to detect changes; see `StoredFile`.
        num_records: Number of records in it.
        layout: Positions of the records, encoded by the reader of the file's format.
    """

    uri: str
    size_bytes: int
    version: str
    num_records: int
    layout: bytes

    def stored_file(self) -> StoredFile:
        """Return the file as a `StoredFile`, with the size and the version in this entry."""
        return StoredFile(self.uri, self.size_bytes, version=self.version)

    def indexed_file(self) -> IndexedFile:
        """Return the file as an `IndexedFile`, which detects changes when it is read."""
        return IndexedFile(self.uri, self.size_bytes, version=self.version)


@dataclass(frozen=True)
class DataIndex:
    """Index of files of one format: the number of records in each, and the records' positions.

    Attributes:
        format: Format of all files.
        files: Entries in reading order.
        types: Name and type of each column, if they were inferred from the cells of all files
            (CSV without a schema); else None.
    """

    format: Format
    files: tuple[FileEntry, ...]
    types: tuple[tuple[str, str], ...] | None = None

    @property
    def uris(self) -> list[str]:
        """URIs of the files."""
        return [file.uri for file in self.files]

    @property
    def num_records(self) -> int:
        """Number of records in all files."""
        return sum(file.num_records for file in self.files)


@runtime_checkable
class IndexedSource(Protocol):
    """A `RecordSource` that can return an index of its files."""

    def index(self) -> DataIndex:
        """Return an index with which the same files can be opened again without reading them."""
        ...


@runtime_checkable
class InferringSource(IndexedSource, Protocol):
    """An `IndexedSource` that infers column types from cells without a schema, as CSV does."""

    def infer_types(self) -> None:
        """Infer the types from all cells, once; `index` includes them afterwards."""
        ...


def index_of(source: object) -> DataIndex | None:
    """Return the index of a source; None if its reader does not support indexes."""
    return source.index() if isinstance(source, IndexedSource) else None


def infer_types(source: object) -> None:
    """Infer the column types for reading without a schema, if the source is an `InferringSource`.

    Raises:
        DataError: A file cannot be read, or the files have different columns.
    """
    if isinstance(source, InferringSource):
        source.infer_types()


def entries_by_index(
    uris: Sequence[str], index: DataIndex | None, open_one: Callable[[str], FileEntry]
) -> list[FileEntry]:
    """Return an index entry for each file; only files that are not in the index are read.

    Args:
        uris: Files in reading order.
        index: An existing index of some or all of the files.
        open_one: Function (URI) -> index entry of the file, which it reads.

    Raises:
        DataError: A file that is not in the index cannot be read.
    """
    if index is None:
        return open_each(uris, open_one)
    if index.uris == list(uris):
        return list(index.files)
    known = {entry.uri: entry for entry in index.files}
    others = [uri for uri in uris if uri not in known]
    known.update(zip(others, open_each(others, open_one), strict=True))
    return [known[uri] for uri in uris]


def open_by_index(
    uris: Sequence[str],
    index: DataIndex | None,
    unpack: Callable[[FileEntry], Layout],
    open_one: Callable[[str], Layout],
) -> list[Layout]:
    """Return the layout (positions of records) of each file; read only files not in the index.

    Args:
        uris: Files in reading order.
        index: An existing index of some or all of the files.
        unpack: Function (entry) -> layout that is stored in it.
        open_one: Function (URI) -> layout of the file, which it reads.

    Raises:
        CorruptDataError: An entry is invalid.
        DataError: A file that is not in the index cannot be read.
    """
    if index is None:
        return open_each(uris, open_one)
    known = {entry.uri: _unpacked(entry, unpack) for entry in index.files}
    others = [uri for uri in uris if uri not in known]
    known.update(zip(others, open_each(others, open_one), strict=True))
    return [known[uri] for uri in uris]


def _unpacked(entry: FileEntry, unpack: Callable[[FileEntry], Layout]) -> Layout:
    try:
        return unpack(entry)
    except (ValueError, struct.error, KeyError, TypeError, IndexError) as error:
        raise bad_entry(entry, str(error)) from error


def bad_entry(entry: FileEntry, found: str) -> CorruptDataError:
    """Return the error for an invalid index entry.

    Args:
        entry: The entry.
        found: What is in the entry or the file instead of valid positions of records, in words.
    """
    expected = f"{entry.num_records} records in {entry.size_bytes} bytes"
    return CorruptDataError(f"The index of {entry.uri}", 0, expected, found)


def entry_of(file: StoredFile, num_records: int, layout: bytes) -> FileEntry:
    """Return the index entry for an opened file.

    Args:
        file: The file, with its size and version.
        num_records: Number of records in it.
        layout: Positions of the records, as packed by the reader of its format.
    """
    return FileEntry(file.uri, file.size_bytes, file.version, num_records, layout)


# --- as bytes ----------------------------------------------------------------------------------


def encode(index: DataIndex) -> bytes:
    """Return an index as bytes, compressed; see `decode`."""
    columns = [
        [entry.size_bytes for entry in index.files],
        [entry.num_records for entry in index.files],
        [len(entry.layout) for entry in index.files],
    ]
    names = {
        "format": index.format,
        "uris": index.uris,
        "versions": [entry.version for entry in index.files],
        **({} if index.types is None else {"types": index.types}),
    }
    text = json.dumps(names).encode()
    body = b"".join(
        [
            _JSON_BYTES.pack(len(text)),
            text,
            np.array(columns, _NUMBERS).tobytes(),
            *(entry.layout for entry in index.files),
        ]
    )
    stored = zlib.compress(body, 1)
    if len(body) > _most_bytes(len(stored)):
        stored = zlib.compress(body, 0)
    checked = _HEAD.pack(_MAGIC, 0, len(body))[_CHECKED_AT:] + stored
    return _MAGIC + zlib.crc32(checked).to_bytes(4, "little") + checked


def decode(data: bytes, where: str) -> DataIndex:
    """Return the index that `encode` wrote.

    Args:
        data: The bytes. They may be untrusted: nothing in them is executed, and memory is limited.
        where: Their name in error messages.

    Raises:
        CorruptDataError: They are not an index, or are damaged.
    """
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise CorruptDataError(where, 0, f"a data index, which starts with {_MAGIC!r}", "none")
    _, checksum, body_bytes = _HEAD.unpack_from(data)
    found = zlib.crc32(memoryview(data)[_CHECKED_AT:])
    if found != checksum:
        raise CorruptDataError(
            where, _CHECKED_AT, f"an index with the CRC-32 0x{checksum:08x}", f"0x{found:08x}"
        )
    most = _most_bytes(len(data))
    if body_bytes > most:
        raise CorruptDataError(
            where, _CHECKED_AT, f"at most {most:,} bytes after decompression", f"{body_bytes:,}"
        )
    try:
        return _decoded(_inflated(memoryview(data)[_HEAD.size :], body_bytes))
    except (zlib.error, ValueError, KeyError, TypeError, struct.error) as error:
        raise CorruptDataError(where, _HEAD.size, "a data index", str(error)) from error


def _inflated(stored: memoryview, size_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    body = inflater.decompress(stored, size_bytes + 1)
    if len(body) != size_bytes or not inflater.eof:
        raise ValueError(f"{len(body)} bytes where {size_bytes} should be")
    return body


def _decoded(body: bytes) -> DataIndex:
    (text_bytes,) = _JSON_BYTES.unpack_from(body)
    numbers_at = _JSON_BYTES.size + text_bytes
    names: Any = json.loads(body[_JSON_BYTES.size : numbers_at])
    file_format, uris, versions = names["format"], names["uris"], names["versions"]
    if file_format not in readable_formats():
        raise ValueError(f"{file_format!r} is not a format that can be read here")
    if not all(isinstance(text, str) for text in [*uris, *versions]):
        raise TypeError("a name that is not a string")
    types = names.get("types")
    if types is not None:
        types = tuple((name, kind) for name, kind in types)
        if not all(isinstance(text, str) for pair in types for text in pair):
            raise TypeError("a column whose name is not a string")
    columns = np.frombuffer(body, _NUMBERS, _NUM_COLUMNS * len(uris), numbers_at)
    if len(columns) and int(columns.min()) < 0:
        raise ValueError("a negative number")
    sizes, counts, lengths = columns.reshape(_NUM_COLUMNS, -1).tolist()
    begin = numbers_at + columns.nbytes
    borders = [*accumulate(lengths, initial=begin)]
    if borders[-1] != len(body):
        raise ValueError(f"layouts up to byte {borders[-1]} of {len(body)}")
    layouts = [body[start:end] for start, end in pairwise(borders)]
    files = zip(uris, sizes, versions, counts, layouts, strict=True)
    return DataIndex(file_format, tuple(map(FileEntry._make, files)), types)


def _most_bytes(stored_bytes: int) -> int:
    return max(_FREE_BYTES, _MAX_EXPANSION * stored_bytes)
