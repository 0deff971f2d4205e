"""RecordIO files: records in checksummed chunks, read by number and written atomically.

A file is a sequence of chunks and nothing else; an empty file has no record. `recordio_chunk.py`
reads and writes a chunk. Other programs for this format exist: two packages in Go, and `pyrecordio`
in Python. They can read the files that are written here, and their files can be read.

Which damage is detected, and when:

* Opening reads only the headers. It detects a wrong magic number, an unknown compressor, a chunk
  without records, a chunk with more records than fit into its bytes, and a file that ends too
  early.
* Reading a chunk detects all damage of its payload, its checksum, its size and its count.
* No checksum covers a header. So a damaged *count* is detected only when its chunk is read: until
  then the numbers of the records after it are shifted. Reading all records (as an epoch does)
  always detects it. A compressor changed into another valid one is detected without a checksum: the
  payload then does not decode, or its size or record count is wrong.

Records are decoded into fields by `record_decoding.py`.

Callers: `sources.py`, `prepare.py`, `prediction/`.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.atomic_writer import AtomicWriter
from elasticdl.data.bytes_unit import BytesUnit
from elasticdl.data.data_index import DataIndex, entries_by_index
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.record_decoding import decode_records
from elasticdl.data.record_source import RecordFile
from elasticdl.data.recordio_chunk import (
    COMPRESSORS,
    HEADER_BYTES,
    LENGTH_BYTES,
    UINT32_MAX,
    Chunk,
    ChunkReader,
    Compressor,
    encode_chunk,
    parse_header,
)
from elasticdl.data.recordio_index import ChunkTable, pack
from elasticdl.data.stored_file import open_stored
from elasticdl.data.units import Units, is_remote, sample
from elasticdl.errors import CorruptDataError, DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.data_index import FileEntry
    from elasticdl.data.recordio_chunk import DecodedChunk
    from elasticdl.data.schema import Schema

__all__ = [
    "COMPRESSORS",
    "DEFAULT_MAX_CHUNK_BYTES",
    "Chunk",
    "Compressor",
    "RecordIOSource",
    "Writer",
]

DEFAULT_MAX_CHUNK_BYTES = 4 << 20
"""Bytes of records in one chunk.

A chunk is the smallest unit of reading: a small chunk wastes little when a range needs a part of
it, large chunks need few requests to open a remote file (one per chunk). 4 MiB is what an object
store sends in about the time it takes to respond, and stays in a processor's cache.
"""

# Number of freed buffers kept for reuse; allocating memory would cost more than reading a chunk.
_MAX_SPARE = 4
# State that is not sent to another process.
_STAYS = ("_here", "_spare")
# Empty records add nothing to the bytes of a chunk, but a chunk must end at some point.
_MAX_CHUNK_RECORDS = 1 << 20


class RecordIOSource:
    """Records of RecordIO files; implements `RecordSource`.

    Each thread keeps the chunk it read last, decompressed: consecutive small ranges cost one
    decompression per chunk.

    Args:
        uris: Files in reading order.
        index: An existing index of the files: headers of files in it are not read.

    Raises:
        CorruptDataError: A header is damaged, or a file ends too early.
        DataError: A file cannot be read.
    """

    def __init__(self, uris: Sequence[str], index: DataIndex | None = None) -> None:
        self._entries = entries_by_index(uris, index, _open)
        # Files that were not opened here may have changed since they were indexed.
        self._by_index = frozenset(() if index is None else index.uris)
        self._chunks = ChunkTable(self._entries)
        self._numbering = Numbering(
            [RecordFile(entry.uri, entry.num_records) for entry in self._entries]
        )
        self._here = _ThreadCache()
        self._spare: deque[mmap.mmap] = deque(maxlen=_MAX_SPARE)

    @property
    def files(self) -> Sequence[RecordFile]:
        """The files in reading order."""
        return self._numbering.files

    @property
    def num_records(self) -> int:
        """Number of records in all files."""
        return self._numbering.num_records

    def chunks(self, file_index: int) -> Sequence[Chunk]:
        """Return the chunks of one file, in order."""
        return [self._chunks.chunk(index) for index in self._chunks.of_file(file_index)]

    def index(self) -> DataIndex:
        """Return an index with the positions of the chunks; see `data_index.py`."""
        return DataIndex("recordio", tuple(self._entries))

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return records `start` to `stop` (exclusive) as stored.

        Raises:
            CorruptDataError: A chunk of this range is damaged.
            IndexError: The range is not within 0 .. num_records.
        """
        records: list[bytes] = []
        for chunk, first, last in self._decoded_chunks(start, stop):
            records += chunk.records(first, last)
        return records

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records `start` to `stop` (exclusive), decoded.

        Raises:
            CorruptDataError: A chunk of this range is damaged.
            SchemaError: A record does not fit the schema; the message names file, record and field.
            IndexError: The range is not within 0 .. num_records.
        """
        records = self.read_bytes(start, stop)
        return decode_records(records, schema, lambda i: self._numbering.name(start + i))

    def units(self, schema: Schema | None) -> Units:
        """Return the chunks as units, each read as a whole; see `units.UnitSource`.

        Raises:
            CorruptDataError: One of the chunks sampled to estimate the compression ratio is
                damaged.
        """
        del schema
        chunks, compressed = self._chunks, self._chunks.compressed
        memory_bytes = int(chunks.size_bytes.sum())
        if len(compressed):
            sampled = [int(compressed[i]) for i in sample(len(compressed))]
            stored = int(chunks.size_bytes[sampled].sum())
            plain = sum(self.read_unit(index, None).payload_bytes for index in sampled)
            memory_bytes = round(memory_bytes * plain / stored)
        memory_bytes += BytesUnit.INDEX_BYTES * self.num_records
        remote = is_remote([entry.uri for entry in self._entries])
        return Units(chunks.num_records, memory_bytes, remote)

    def read_unit(self, index: int, schema: Schema | None) -> BytesUnit:
        """Return a chunk by its number over all files; see `units.UnitSource`.

        Raises:
            CorruptDataError: The chunk is damaged.
        """
        del schema
        reader = self._here.unit_reader
        unit = self._read(reader, index).unit()
        # The unit is kept while others are read. When it is freed, another one reuses its memory.
        reader.exchange(unit.memory, _taken(self._spare))
        if isinstance(unit.memory, mmap.mmap):
            weakref.finalize(unit, _give_back, self._spare, unit.memory).atexit = False
        return unit

    def joined(self, units: Iterable[BytesUnit], memory_bytes: int) -> BytesUnit:
        """Join all units into one, from which records are picked faster; see `UnitSource`."""
        return BytesUnit.joined(units, memory_bytes)

    def _decoded_chunks(self, start: int, stop: int) -> Iterator[tuple[DecodedChunk, int, int]]:
        """Yield the chunks that contain records `start` to `stop` (exclusive).

        Yields:
            A chunk, and the range (first, stop) of its records that are requested. The chunk is
            valid until the next one is read.

        Raises:
            CorruptDataError: A chunk is damaged.
            IndexError: The range is not within 0 .. num_records.
        """
        self._numbering.check(start, stop)
        firsts = self._chunks.firsts
        index = int(np.searchsorted(firsts, start, "right")) - 1
        while start < stop:
            first, after = int(firsts[index]), int(firsts[index + 1])
            end = min(stop, after)
            yield self._decoded(index), start - first, end - first
            start = end
            index += 1

    def _decoded(self, index: int) -> DecodedChunk:
        here = self._here
        if here.chunk is not None and here.index == index:
            return here.chunk
        # Its memory is overwritten now, whether or not reading succeeds.
        here.chunk = None
        here.index, here.chunk = index, self._read(here.reader, index)
        return here.chunk

    def _read(self, reader: ChunkReader, index: int) -> DecodedChunk:
        """Read a chunk by its number over all files, and verify its checksum and all lengths.

        Args:
            reader: The reader to use, whose previous chunk becomes invalid.
            index: Number of the chunk.

        Raises:
            CorruptDataError: The chunk is damaged.
            DataError: The file has changed since it was counted, or cannot be read.
        """
        entry = self._entries[self._chunks.file_of(index)]
        by_index = entry.uri in self._by_index
        file = entry.indexed_file() if by_index else entry.stored_file()
        try:
            return reader.read(file, self._chunks.chunk(index))
        except CorruptDataError:
            file.require_unchanged()
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _STAYS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _here=_ThreadCache(), _spare=deque(maxlen=_MAX_SPARE))


class _ThreadCache(threading.local):
    """The chunk that this thread read last, and two chunk readers of this thread.

    `reader` reads for ranges of records, `unit_reader` for units. A chunk reader overwrites its
    previous chunk: with only one, reading a unit would overwrite the chunk that is kept.
    """

    def __init__(self) -> None:
        self.reader = ChunkReader()
        self.unit_reader = ChunkReader()
        self.index = -1
        self.chunk: DecodedChunk | None = None


def _taken(spare: deque[mmap.mmap]) -> mmap.mmap | None:
    try:
        return spare.pop()
    except IndexError:
        return None


def _give_back(spare: deque[mmap.mmap], memory: mmap.mmap) -> None:
    spare.append(memory)


def _open(uri: str) -> FileEntry:
    """Return the index entry of a file, with its chunks, after reading only their headers.

    Raises:
        CorruptDataError: A header is damaged, or the file ends too early.
        DataError: The file cannot be read.
    """
    file = open_stored(uri)
    chunks: list[Chunk] = []
    offset = 0
    while offset < file.size_bytes:
        chunks.append(parse_header(file, offset, file.read(offset, offset + HEADER_BYTES)))
        offset = chunks[-1].end_bytes
    return pack(file, chunks)


class Writer(AtomicWriter):
    """Writes a RecordIO file, which appears as a whole when it is closed.

    As in Go packages for this format, a chunk ends before the record that would make it larger than
    `max_chunk_bytes` (without the lengths of records). A larger record gets a separate chunk.

    Used in a `with` statement: an exception in its body leaves no file.

    Args:
        uri: A path or an fsspec URI; an existing file is replaced at the end.
        compressor: `none`, `snappy` or `gzip`.
        max_chunk_bytes: Bytes of records in one chunk; see `DEFAULT_MAX_CHUNK_BYTES`.

    Raises:
        UsageError: An argument has an impossible value.
        OutputError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/greetings.recordio"
        >>> with Writer(path) as writer:
        ...     writer.write(b"Hello")
        ...     writer.write(b"World,")
        >>> RecordIOSource([path]).read_bytes(0, 2)
        [b'Hello', b'World,']
    """

    def __init__(
        self,
        uri: str,
        compressor: Compressor = "snappy",
        max_chunk_bytes: int = DEFAULT_MAX_CHUNK_BYTES,
    ) -> None:
        if compressor not in COMPRESSORS:
            raise UsageError(
                f"RecordIO does not support the compressor {compressor!r}; choose one of "
                f"{', '.join(COMPRESSORS)}."
            )
        if not 1 <= max_chunk_bytes <= UINT32_MAX:
            raise UsageError(
                f"max_chunk_bytes is {max_chunk_bytes}; a chunk holds 1 to {UINT32_MAX} bytes."
            )
        self.uri = uri
        self.compressor: Compressor = compressor
        self.max_chunk_bytes = max_chunk_bytes
        self._file = AtomicFile(uri)
        self._records: list[bytes] = []
        self._records_bytes = 0
        self._closed = False

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Append a record, which may be empty.

        Raises:
            DataError: The record is too long for the format (4 GiB).
            OutputError: The file cannot be written; none is left.
            ValueError: The file is closed.
        """
        if self._closed:
            raise ValueError(f"{self.uri} is closed; a record cannot be added to it.")
        if not isinstance(record, bytes):
            # A copy, because the caller may reuse its buffer before the chunk is written.
            record = bytes(memoryview(record))
        if len(record) > UINT32_MAX - LENGTH_BYTES:
            raise DataError(
                f"{self.uri}: a record of {len(record)} bytes is too large for RecordIO; expected "
                f"at most {UINT32_MAX - LENGTH_BYTES}. Split it into several records."
            )
        full = self._records_bytes + len(record) > self.max_chunk_bytes
        if full or len(self._records) == _MAX_CHUNK_RECORDS:
            self._flush()
        self._records.append(record)
        self._records_bytes += len(record)

    def close(self) -> None:
        """Publish the file; closing twice is harmless.

        Raises:
            OutputError: It cannot be completed; the previous file is kept.
        """
        if self._closed:
            return
        self._flush()
        self._closed = True
        self._file.publish()

    def discard(self) -> None:
        """Close without publishing; does nothing if the file is closed."""
        self._closed = True
        self._file.discard()

    def _flush(self) -> None:
        """Write the collected records as a chunk; after an error the file cannot be published."""
        if not self._records:
            return
        try:
            for part in encode_chunk(self._records, self.compressor):
                self._file.write(part)
        except BaseException:
            # A chunk is missing now: the file must not be published, whatever is written later.
            self.discard()
            raise
        self._records, self._records_bytes = [], 0
