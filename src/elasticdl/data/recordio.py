"""RecordIO: records in checksummed chunks, read by number and written atomically.

A file is chunks one after the other and nothing else; a file of no bytes holds no record. What
a chunk is knows `recordio_chunk.py`. Files of both Go writers and of `pyrecordio` are read, and
they read ours.

What damage is found, and when:

* Opening reads the headers only. It finds a wrong magic number, an unknown compressor, a chunk
  without records, a chunk with more records than its bytes can be, and a file that ends too early.
* Reading a chunk finds every damage of its payload, its checksum, its size and its count.
* No checksum covers a header. So a damaged *count* is found when its chunk is read, not before:
  until then the numbers of the records behind it are shifted. Whoever reads all records (an
  epoch does) cannot miss it. A compressor changed into another valid one is found because the
  payload then does not decode, or its records do not add up; no checksum says so.

How records are decoded into fields is not known here.

Callers: `sources.py`, `prepare.py`, `prediction/`.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data import recordio_index
from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.bytes_unit import BytesUnit
from elasticdl.data.data_index import DataIndex, open_by_index
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
    RecordViews,
    encode_chunk,
    parse_header,
)
from elasticdl.data.stored_file import open_stored
from elasticdl.data.units import Units, is_remote, sample
from elasticdl.data.whole_or_nothing import WholeOrNothing
from elasticdl.errors import CorruptDataError, DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.recordio_chunk import DecodedChunk
    from elasticdl.data.schema import Schema
    from elasticdl.data.stored_file import StoredFile

__all__ = [
    "COMPRESSORS",
    "DEFAULT_MAX_CHUNK_BYTES",
    "Chunk",
    "Compressor",
    "RecordIOSource",
    "RecordViews",
    "Writer",
]

DEFAULT_MAX_CHUNK_BYTES = 4 << 20
"""Bytes of records in one chunk.

A chunk is the least that can be read: a small one wastes little when a range needs a part of
it, a large one needs few requests to open a remote file (one a chunk). 4 MiB is what an object
store sends in about the time it takes to answer, and stays in a processor's cache.
"""

# Memory for chunks to come, which would cost more to get from the system than reading them.
_MOST_SPARE = 4
# What does not travel to another process.
_STAYS = ("_here", "_spare")
# Empty records add nothing to the bytes of a chunk, and yet a chunk must end at some time.
_MAX_CHUNK_RECORDS = 1 << 20


class RecordIOSource:
    """Records of RecordIO files; follows the laws of `RecordSource`.

    Each thread keeps the chunk it read last, decompressed: small ranges one after the other
    cost one decompression a chunk.

    Args:
        uris: Files in reading order.
        index: What is known of them: the headers of files that it has are not read.

    Raises:
        CorruptDataError: A header is damaged, or a file ends too early.
        DataError: A file cannot be read.
    """

    def __init__(self, uris: Sequence[str], index: DataIndex | None = None) -> None:
        opened = open_by_index(uris, index, recordio_index.unpack, _open)
        self._stored = [stored for stored, _ in opened]
        self._chunks = [chunks for _, chunks in opened]
        # The number of the first record of each chunk, and one past the last of the file.
        self._firsts = [
            [0, *accumulate(chunk.num_records for chunk in chunks)] for chunks in self._chunks
        ]
        self._numbering = Numbering(
            [
                RecordFile(stored.uri, firsts[-1])
                for stored, firsts in zip(self._stored, self._firsts, strict=True)
            ]
        )
        # The number of the first chunk of each file, counted over all files.
        self._first_chunks = [0, *accumulate(len(chunks) for chunks in self._chunks)]
        self._here = _OfThisThread()
        self._spare: deque[mmap.mmap] = deque(maxlen=_MOST_SPARE)

    @property
    def files(self) -> Sequence[RecordFile]:
        """The files in reading order."""
        return self._numbering.files

    @property
    def num_records(self) -> int:
        """How many records there are in all files."""
        return self._numbering.num_records

    def chunks(self, file_index: int) -> Sequence[Chunk]:
        """Return the chunks of one file, in order."""
        return self._chunks[file_index]

    def index(self) -> DataIndex:
        """Return where the chunks are; see `data_index.py`."""
        files = map(recordio_index.pack, self._stored, self._chunks)
        return DataIndex("recordio", tuple(files))

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

    def read_views(self, start: int, stop: int) -> Iterator[RecordViews]:
        """Yield records `start` to `stop` (exclusive) as views, chunk by chunk.

        For decoders that cut fields out of many records at once: nothing is copied, and a view
        stays good as long as it is held.

        Raises:
            CorruptDataError: A chunk of this range is damaged.
            IndexError: The range is not within 0 .. num_records.
        """
        for chunk, first, last in self._decoded_chunks(start, stop):
            self._here.reader.give_away()
            yield chunk.views(first, last)

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records `start` to `stop` (exclusive), decoded.

        Raises:
            CorruptDataError: A chunk of this range is damaged.
            SchemaError: A record does not fit the schema; names file, record and field.
            IndexError: The range is not within 0 .. num_records.
        """
        records = self.read_bytes(start, stop)
        return decode_records(records, schema, lambda i: self._numbering.name(start + i))

    def units(self, schema: Schema | None) -> Units:
        """Return the chunks; see `units.UnitSource`.

        Raises:
            CorruptDataError: One of the few that are read to see how well they are compressed is
                damaged.
        """
        del schema
        chunks = [chunk for chunks in self._chunks for chunk in chunks]
        sizes = np.array([chunk.num_records for chunk in chunks], np.int64)
        memory_bytes = sum(chunk.size_bytes for chunk in chunks)
        compressed = [i for i, chunk in enumerate(chunks) if chunk.compressor != "none"]
        if compressed:
            sampled = [compressed[i] for i in sample(len(compressed))]
            stored = sum(chunks[i].size_bytes for i in sampled)
            plain = sum(self.read_unit(i, None).payload_bytes for i in sampled)
            memory_bytes = round(memory_bytes * plain / stored)
        memory_bytes += BytesUnit.INDEX_BYTES * int(sizes.sum())
        return Units(sizes, memory_bytes, is_remote([stored.uri for stored in self._stored]))

    def read_unit(self, index: int, schema: Schema | None) -> BytesUnit:
        """Return a chunk, counted over all files; see `units.UnitSource`.

        Raises:
            CorruptDataError: It is damaged.
        """
        del schema
        file_index = bisect_right(self._first_chunks, index) - 1
        chunk = self._chunks[file_index][index - self._first_chunks[file_index]]
        reader = self._here.unit_reader
        unit = _read(reader, self._stored[file_index], chunk).unit()
        # The unit stays while others are read. When it is gone, another one takes its memory.
        reader.exchange(unit.memory, _taken(self._spare))
        if isinstance(unit.memory, mmap.mmap):
            weakref.finalize(unit, _give_back, self._spare, unit.memory).atexit = False
        return unit

    def joined(self, units: Iterable[BytesUnit], memory_bytes: int) -> BytesUnit:
        """Return units as one; see `units.UnitSource`."""
        return BytesUnit.joined(units, memory_bytes)

    def _decoded_chunks(self, start: int, stop: int) -> Iterator[tuple[DecodedChunk, int, int]]:
        """Yield the chunks of a range, each with the part of its own records that is in it."""
        for part in self._numbering.split(start, stop):
            firsts = self._firsts[part.file_index]
            at = part.start
            while at < part.stop:
                index = bisect_right(firsts, at) - 1
                end = min(part.stop, firsts[index + 1])
                yield self._decoded(part.file_index, index), at - firsts[index], end - firsts[index]
                at = end

    def _decoded(self, file_index: int, chunk_index: int) -> DecodedChunk:
        here = self._here
        key = file_index, chunk_index
        if here.chunk is not None and here.key == key:
            return here.chunk
        # Its memory is written to now, whether or not that ends well.
        here.chunk = None
        chunk = self._chunks[file_index][chunk_index]
        here.key, here.chunk = key, _read(here.reader, self._stored[file_index], chunk)
        return here.chunk

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _STAYS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _here=_OfThisThread(), _spare=deque(maxlen=_MOST_SPARE))


class _OfThisThread(threading.local):
    """What a thread reads with, and the chunk it read last."""

    def __init__(self) -> None:
        self.reader = ChunkReader()
        self.unit_reader = ChunkReader()
        self.key = (-1, -1)
        self.chunk: DecodedChunk | None = None


def _taken(spare: deque[mmap.mmap]) -> mmap.mmap | None:
    try:
        return spare.pop()
    except IndexError:
        return None


def _give_back(spare: deque[mmap.mmap], memory: mmap.mmap) -> None:
    spare.append(memory)


def _read(reader: ChunkReader, file: StoredFile, chunk: Chunk) -> DecodedChunk:
    """Read a chunk, and check all of it.

    Raises:
        CorruptDataError: It is damaged.
        DataError: The file has changed since it was counted, or cannot be read.
    """
    try:
        return reader.read(file, chunk)
    except CorruptDataError:
        file.require_unchanged()
        raise


def _open(uri: str) -> tuple[StoredFile, list[Chunk]]:
    """Return a file and its chunks, after reading its headers and nothing else."""
    file = open_stored(uri)
    chunks: list[Chunk] = []
    offset = 0
    while offset < file.size_bytes:
        chunks.append(parse_header(file, offset, file.read(offset, offset + HEADER_BYTES)))
        offset = chunks[-1].end_bytes
    return file, chunks


class Writer(WholeOrNothing):
    """Writes a RecordIO file, which appears when it is closed, complete.

    A chunk ends before the record that would make it larger than `max_chunk_bytes` (lengths
    not counted), as in the Go writers; a record larger than that has a chunk of its own.

    Used in a `with` statement: an exception in its body leaves no file.

    Args:
        uri: A path or an fsspec URI; a file that is there already is replaced at the end.
        compressor: `none`, `snappy` or `gzip`.
        max_chunk_bytes: Bytes of records in one chunk; see `DEFAULT_MAX_CHUNK_BYTES`.

    Raises:
        UsageError: An argument has an impossible value.
        OutputError: The place cannot be written to.

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
                f"RecordIO knows no compressor {compressor!r}; choose one of "
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
            OutputError: The place cannot be written to; no file is left.
            ValueError: The file is closed.
        """
        if self._closed:
            raise ValueError(f"{self.uri} is closed; a record cannot be added to it.")
        if not isinstance(record, bytes):
            # A copy, because the caller may fill its buffer anew before the chunk is written.
            record = bytes(memoryview(record))
        if len(record) > UINT32_MAX - LENGTH_BYTES:
            raise DataError(
                f"{self.uri}: a record of {len(record)} bytes does not fit into RecordIO, which "
                f"takes {UINT32_MAX - LENGTH_BYTES} at most. Split it into several records."
            )
        full = self._records_bytes + len(record) > self.max_chunk_bytes
        if full or len(self._records) == _MAX_CHUNK_RECORDS:
            self._flush()
        self._records.append(record)
        self._records_bytes += len(record)

    def close(self) -> None:
        """Publish the file; does nothing the second time.

        Raises:
            OutputError: It cannot be completed; what was there before is still there.
        """
        if self._closed:
            return
        self._flush()
        self._closed = True
        self._file.publish()

    def discard(self) -> None:
        """Leave no file; does nothing to one that is closed."""
        self._closed = True
        self._file.discard()

    def _flush(self) -> None:
        """Write what was collected as a chunk."""
        if not self._records:
            return
        try:
            for part in encode_chunk(self._records, self.compressor):
                self._file.write(part)
        except BaseException:
            # A chunk is missing now: whatever is written later, this must not be published.
            self.discard()
            raise
        self._records, self._records_bytes = [], 0
