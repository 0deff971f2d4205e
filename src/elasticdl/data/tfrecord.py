"""TFRecord files, read by number and written atomically, without TensorFlow.

    file   := record*                           an empty file has no record
    record := length, checksum of it, data, checksum of the data

The length is a little-endian uint64. A checksum is a CRC-32C, as a little-endian uint32. It is
masked (rotated, plus a constant), because a CRC of bytes that contain their own CRC is weak.

Every byte is covered by a checksum: a damaged length is detected when the file is opened, damaged
data when it is read, and a file that ends too early when it is opened.

The format has no index. Opening walks from length to length, which for records shorter than a
few kilobytes reads as many bytes as the file has; RecordIO opens faster, and so do files with an
index (`tfrecord_index.py`). A file that is compressed as a whole (gzip or zlib, detected from its
content) has no random access either: opening decompresses it once, and reading at a position
decompresses one block again (see `inflated_file.py`).

Records are decoded into fields by `record_decoding.py`.

Callers: `sources.py`.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

import numpy as np

from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.atomic_writer import AtomicWriter
from elasticdl.data.bytes_unit import BytesUnit
from elasticdl.data.data_index import DataIndex, entry_of, open_by_index
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.inflated_file import InflatedFile
from elasticdl.data.masked_crc import masked_crc32c
from elasticdl.data.record_decoding import decode_records
from elasticdl.data.record_source import RecordFile
from elasticdl.data.stored_file import local_path, open_stored
from elasticdl.data.tfrecord_index import pack_starts, unpack_starts
from elasticdl.data.units import Units, is_remote, unit_bytes
from elasticdl.errors import CorruptDataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.data_index import FileEntry
    from elasticdl.data.schema import Schema
    from elasticdl.data.stored_file import StoredFile

Compressor = Literal["none", "gzip", "zlib"]
COMPRESSORS: tuple[Compressor, ...] = get_args(Compressor)

_HEADER = struct.Struct("<QI")
_LENGTH_BYTES = 8
_CHECKSUM = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _CHECKSUM.size
# Bytes of a file that are read at a time while walking it, and afterwards.
_WALK_BYTES = 256 << 10
_REMOTE_WALK_BYTES = 4 << 20
_READ_BYTES = 4 << 20
# For a compressed file: to reach a position, the bytes before it since the last kept state are
# decompressed as well, which may be several MiB.
_INFLATED_UNIT_BYTES = 8 << 20
# Starts of gzip streams, and of zlib streams with the usual window at each compression level.
_COMPRESSED_STARTS = (b"\x1f\x8b\x08", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
# For zlib, "write gzip" (a plain number of window bits means "write zlib").
_GZIP = zlib.MAX_WBITS | 16


# --- reading -----------------------------------------------------------------------------------


class _Bytes(Protocol):
    """Common interface of `StoredFile` and `InflatedFile`: reads bytes by position.

    For a compressed file, positions are counted after decompression.
    """

    @property
    def uri(self) -> str: ...

    @property
    def offset_note(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes: ...


class TFRecordSource:
    """Records of TFRecord files; implements `RecordSource`.

    Args:
        uris: Files in reading order; gzip, zlib and uncompressed ones may be mixed.
        index: An existing index; the files that it covers are not scanned.

    Raises:
        CorruptDataError: A length is damaged, or a file ends too early.
        DataError: A file cannot be read.
    """

    def __init__(self, uris: Sequence[str], index: DataIndex | None = None) -> None:
        opened = open_by_index(uris, index, _unpacked, _open)
        self._stored = [stored for stored, _, _ in opened]
        self._bytes = [data for _, data, _ in opened]
        # For each file: byte offset of each record, then the end of the file.
        self._starts = [starts for _, _, starts in opened]
        self._numbering = Numbering(
            [RecordFile(stored.uri, len(starts) - 1) for stored, _, starts in opened]
        )
        at_once = unit_bytes([data.uri for data in self._bytes])
        # For each file: number of each unit's first record, then the number of records.
        self._units = [
            _unit_firsts(starts, at_once if data.offset_note == "" else _INFLATED_UNIT_BYTES)
            for _, data, starts in opened
        ]
        # The number of the first unit of each file, counted over all files.
        self._first_units = [0, *accumulate(len(firsts) - 1 for firsts in self._units)]

    @property
    def files(self) -> Sequence[RecordFile]:
        """The files in reading order."""
        return self._numbering.files

    @property
    def num_records(self) -> int:
        """Number of records in all files."""
        return self._numbering.num_records

    def index(self) -> DataIndex:
        """Return an index with the positions of the records; see `data_index.py`."""
        files = zip(self._stored, self._bytes, self._starts, strict=True)
        return DataIndex("tfrecord", tuple(_entry(*file) for file in files))

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return records `start` to `stop` (exclusive) as stored.

        Raises:
            CorruptDataError: A record of this range is damaged.
            IndexError: The range is not within 0 .. num_records.
        """
        records: list[bytes] = []
        for part in self._numbering.split(start, stop):
            starts = self._starts[part.file_index]
            at = part.start
            while at < part.stop:
                # As many as fit, and at least one.
                fitting = bisect_right(starts, starts[at] + _READ_BYTES) - 1
                end = min(max(fitting, at + 1), part.stop)
                records += _read(self._bytes[part.file_index], starts[at : end + 1])
                at = end
        return records

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records `start` to `stop` (exclusive), decoded.

        Raises:
            CorruptDataError: A record of this range is damaged.
            SchemaError: A record does not fit the schema; the message names file, record and field.
            IndexError: The range is not within 0 .. num_records.
        """
        records = self.read_bytes(start, stop)
        return decode_records(records, schema, lambda i: self._numbering.name(start + i))

    def units(self, schema: Schema | None) -> Units:
        """Divide the records into units, ranges read as a whole; see `units.UnitSource`."""
        del schema
        sizes = [np.diff(np.array(firsts, np.int64)) for firsts in self._units]
        memory_bytes = sum(starts[-1] for starts in self._starts)
        memory_bytes += BytesUnit.INDEX_BYTES * self.num_records
        return Units(
            np.concatenate(sizes), memory_bytes, is_remote([data.uri for data in self._bytes])
        )

    def read_unit(self, index: int, schema: Schema | None) -> BytesUnit:
        """Return a unit (a range of records) by its number over all files; see `units.UnitSource`.

        Raises:
            CorruptDataError: A record in it is damaged.
        """
        del schema
        file_index = bisect_right(self._first_units, index) - 1
        at = index - self._first_units[file_index]
        first, stop = self._units[file_index][at : at + 2]
        starts = self._starts[file_index][first : stop + 1]
        data = _data(self._bytes[file_index], starts)
        # One at a time: a list of them would take the same amount of memory again.
        deque(_checked(self._bytes[file_index], starts, data), maxlen=0)
        borders = np.frombuffer(starts, np.int64) - starts[0]
        return BytesUnit(data, borders[:-1] + _HEADER.size, borders[1:] - _CHECKSUM.size)

    def joined(self, units: Iterable[BytesUnit], memory_bytes: int) -> BytesUnit:
        """Join all units into one, from which records are picked faster; see `UnitSource`."""
        return BytesUnit.joined(units, memory_bytes)


def _unit_firsts(starts: array[int], at_once: int) -> list[int]:
    """Split a file into units, ranges of records that are read as a whole.

    Args:
        starts: Byte offset of each record, then the end of the file.
        at_once: Bytes in a unit; a unit has at least one record, however long.

    Returns:
        Number of each unit's first record, then the number of records.
    """
    firsts = [0]
    while firsts[-1] < len(starts) - 1:
        # As many as fit, and at least one.
        fitting = bisect_right(starts, starts[firsts[-1]] + at_once) - 1
        firsts.append(max(fitting, firsts[-1] + 1))
    return firsts


_Opened: TypeAlias = "tuple[StoredFile, _Bytes, array[int]]"
"""A file, the same file decompressed if needed, and the starts of its records."""


def _open(uri: str) -> _Opened:
    stored = open_stored(uri)
    data: _Bytes = InflatedFile(stored) if _is_compressed(stored) else stored
    return stored, data, _walk(data)


def _entry(stored: StoredFile, data: _Bytes, starts: array[int]) -> FileEntry:
    layout = pack_starts(starts, compressed=data is not stored)
    return entry_of(stored, len(starts) - 1, layout)


def _unpacked(entry: FileEntry) -> _Opened:
    stored = entry.indexed_file()
    starts, compressed = unpack_starts(entry.layout)
    if len(starts) - 1 != entry.num_records or not (compressed or starts[-1] == stored.size_bytes):
        raise ValueError(f"{len(starts) - 1} records up to byte {starts[-1]}")
    return stored, InflatedFile(stored) if compressed else stored, starts


def _is_compressed(stored: StoredFile) -> bool:
    """Return whether a file is a gzip or zlib stream, judging by its first bytes.

    An uncompressed file may begin with the same bytes. It is recognised by the valid checksum of
    its first record's length.
    """
    data = stored.read(0, _HEADER.size)
    if len(data) == _HEADER.size and _length(data, 0) is not None:
        return False
    return data.startswith(_COMPRESSED_STARTS)


def _length(data: bytes, at: int) -> int | None:
    """Return the length in a record's header; None if its checksum does not match."""
    length: int
    length, checksum = _HEADER.unpack_from(data, at)
    return length if masked_crc32c(data[at : at + _LENGTH_BYTES]) == checksum else None


_MAX_LENGTH = 1 << 62


def _walk(file: _Bytes) -> array[int]:
    """Scan a file from one record header to the next.

    Returns:
        Byte offset of each record, then the end of the file.

    Raises:
        CorruptDataError: The length of a record is damaged, or the file ends too early.
        DataError: The file cannot be read.
    """
    at_once = _WALK_BYTES if local_path(file.uri) is not None else _REMOTE_WALK_BYTES
    starts = array("q", [0])
    block, block_start = b"", 0
    position, record_bytes = 0, 0
    while True:
        at = position - block_start
        if at + _HEADER.size > len(block):
            # The bytes between the headers of long records need not be read.
            wanted = at_once if record_bytes < at_once // 4 else _HEADER.size
            block, block_start, at = file.read(position, position + wanted), position, 0
            if len(block) < _HEADER.size:
                break
        length = _length(block, at)
        if length is None:
            raise CorruptDataError(
                file.uri,
                position,
                f"the length of a record and its checksum{file.offset_note}",
                # Never the bytes: this may be any file that the user can read.
                f"{_HEADER.size} bytes that do not agree",
            )
        # A position is a signed 64-bit number, and no file is as long as this.
        record_bytes = _FRAME_BYTES + min(length, _MAX_LENGTH)
        position += record_bytes
        starts.append(position)
    if position != file.size_bytes:
        _raise_truncated(file, starts)
    return starts


def _raise_truncated(file: _Bytes, starts: array[int]) -> None:
    """Raise the `CorruptDataError` for a file that ends within a record, or within a header.

    Args:
        file: The file.
        starts: Byte offset of each record, then the end of the last one according to its header.
    """
    size_bytes = file.size_bytes
    if starts[-1] < size_bytes:
        begun, expected = starts[-1], f"a record header of {_HEADER.size} bytes"
    else:
        begun, expected = starts[-2], f"a record of {starts[-1] - starts[-2]} bytes"
    raise CorruptDataError(
        file.uri,
        begun,
        f"{expected}{file.offset_note}",
        f"the end of the file after {size_bytes - begun} bytes",
    )


def _read(file: _Bytes, starts: array[int]) -> list[bytes]:
    """Read consecutive records and verify the checksum of each.

    Args:
        file: The file.
        starts: Byte offset of each record to read, then the end of the last one.

    Raises:
        CorruptDataError: A record is damaged, or the file has become shorter.
    """
    return [*_checked(file, starts, _data(file, starts))]


def _data(file: _Bytes, starts: array[int]) -> bytes:
    """Return the bytes from the first offset in `starts` to the last.

    Raises:
        CorruptDataError: The file has become shorter since it was opened.
    """
    base = starts[0]
    data = file.read(base, starts[-1])
    if len(data) != starts[-1] - base:
        raise CorruptDataError(
            file.uri,
            base,
            f"{starts[-1] - base} bytes of records{file.offset_note}, as when the file was opened",
            f"the end of the file after {len(data)} bytes",
        )
    return data


def _checked(file: _Bytes, starts: array[int], data: bytes) -> Iterator[bytes]:
    """Cut bytes of a file into records, verifying the checksum of each.

    Args:
        file: The file, for errors.
        starts: Byte offset of each record in the file, then the end of the last one.
        data: The bytes of the file from the first of these offsets to the last.

    Raises:
        CorruptDataError: The checksum of a record does not match.
    """
    base = starts[0]
    begin = _HEADER.size
    for next_start in starts[1:]:
        end = next_start - base - _CHECKSUM.size
        (checksum,) = _CHECKSUM.unpack_from(data, end)
        record = data[begin:end]
        found = masked_crc32c(record)
        if found != checksum:
            raise CorruptDataError(
                file.uri,
                base + begin,
                f"data with the checksum 0x{checksum:08x}{file.offset_note}",
                f"0x{found:08x}",
            )
        yield record
        begin = end + _FRAME_BYTES


# --- writing -----------------------------------------------------------------------------------


class TFRecordWriter(AtomicWriter):
    """Writes a TFRecord file, which appears as a whole when it is closed.

    Used in a `with` statement: an exception in its body leaves no file.

    Args:
        uri: A path or an fsspec URI; an existing file is replaced at the end.
        compressor: `none`, `gzip` or `zlib`; a compressed file has no random access.

    Raises:
        UsageError: The compressor is unknown.
        OutputError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/greetings.tfrecord"
        >>> with TFRecordWriter(path) as writer:
        ...     writer.write(b"Hello")
        ...     writer.write(b"World,")
        >>> TFRecordSource([path]).read_bytes(0, 2)
        [b'Hello', b'World,']
    """

    def __init__(self, uri: str, compressor: Compressor = "none") -> None:
        if compressor not in COMPRESSORS:
            raise UsageError(
                f"TFRecord does not support the compressor {compressor!r}; choose one of "
                f"{', '.join(COMPRESSORS)}."
            )
        self.uri = uri
        self.compressor: Compressor = compressor
        self._deflater = None
        if compressor != "none":
            bits = _GZIP if compressor == "gzip" else zlib.MAX_WBITS
            self._deflater = zlib.compressobj(wbits=bits)
        self._file = AtomicFile(uri)
        self._closed = False

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Append a record, which may be empty.

        Raises:
            OutputError: The file cannot be written.
            ValueError: The file is closed.
        """
        if self._closed:
            raise ValueError(f"{self.uri} is closed; a record cannot be added to it.")
        data = bytes(memoryview(record))
        length = len(data).to_bytes(_LENGTH_BYTES, "little")
        self._append(
            b"".join(
                (
                    length,
                    _CHECKSUM.pack(masked_crc32c(length)),
                    data,
                    _CHECKSUM.pack(masked_crc32c(data)),
                )
            )
        )

    def close(self) -> None:
        """Publish the file; closing twice is harmless.

        Raises:
            OutputError: It cannot be completed; the previous file is kept.
        """
        if self._closed:
            return
        self._closed = True
        if self._deflater is not None:
            self._file.write(self._deflater.flush())
        self._file.publish()

    def discard(self) -> None:
        """Close without publishing; does nothing if the file is closed."""
        self._closed = True
        self._file.discard()

    def _append(self, data: bytes) -> None:
        self._file.write(data if self._deflater is None else self._deflater.compress(data))
