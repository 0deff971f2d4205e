"""One chunk of a RecordIO file: encoding, verification and decoding.

    chunk   := header payload                   the header is five little-endian uint32:
    header  := magic, checksum, compressor, size of the payload, number of records
    payload := compressed (uint32 length, bytes of the record)*

The checksum is the CRC-32 (IEEE) of the payload as stored. Compressors: 0 none, 1 snappy in
its framing format (https://github.com/google/snappy/blob/main/framing_format.txt), one stream per
chunk, 2 gzip. `recordio.py` finds the chunks of a file, and chooses the one to read.

Callers: `recordio.py`.
"""

from __future__ import annotations

import gzip
import mmap
import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import cramjam
import numpy as np
from isal.isal_zlib import crc32

from elasticdl.data.bytes_unit import BytesUnit, fresh_memory
from elasticdl.errors import CorruptDataError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.stored_file import StoredFile

    Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

Compressor = Literal["none", "snappy", "gzip"]
COMPRESSORS: tuple[Compressor, ...] = get_args(Compressor)
"""In the order of their numbers in a chunk's header."""

HEADER_BYTES = 20
LENGTH_BYTES = 4
UINT32_MAX = 0xFFFFFFFF

_MAGIC = 0x01020304
_HEADER = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")
# Positions of fields in the header, for error messages.
_COMPRESSOR_AT, _COUNT_AT = 8, 16
# Snappy frames: kind and length, checksum, data; the kinds that contain data, and its largest size.
_FRAME_HEAD_BYTES, _FRAME_CHECKSUM_BYTES = 4, 4
_FRAME_COMPRESSED, _FRAME_PLAIN, _FRAME_MOST_BYTES = 0x00, 0x01, 1 << 16
_VARINT_BYTES, _VARINT_CONTINUES = 3, 0x80
# No compressor expands its bytes more than this: deflate 1,032 times, Snappy about 20.
_MAX_TIMES = 1040
# For zlib: expect a gzip header.
_GZIP = 16
# Limits of a chunk's size after decompression: this size, or this multiple of the stored size.
_FREE_BYTES, _MAX_EXPANSION = 1 << 30, 20


class Chunk(NamedTuple):
    """Content of a chunk's header.

    Attributes:
        offset_bytes: Start of the header in the file.
        checksum: CRC-32 of the payload.
        compressor: Name of the compressor.
        size_bytes: Size of the payload as stored.
        num_records: Number of records in the chunk.
    """

    offset_bytes: int
    checksum: int
    compressor: Compressor
    size_bytes: int
    num_records: int

    @property
    def payload_bytes(self) -> int:
        """Byte offset of the payload in the file (its size is `size_bytes`)."""
        return self.offset_bytes + HEADER_BYTES

    @property
    def end_bytes(self) -> int:
        """Byte offset in the file at which the chunk ends."""
        return self.payload_bytes + self.size_bytes


def encode_chunk(records: Sequence[bytes], compressor: Compressor) -> tuple[bytes, bytes]:
    """Return the header and the payload of a chunk.

    Args:
        records: At least one; each must fit into 4 GiB together with its length.
        compressor: Compressor of the payload.

    Raises:
        DataError: The payload is longer than 4 GiB.
    """
    lengths = map(_LENGTH.pack, map(len, records))
    payload = b"".join([piece for pair in zip(lengths, records, strict=True) for piece in pair])
    if compressor == "snappy":
        payload = bytes(cramjam.snappy.compress(payload))
    elif compressor == "gzip":
        # Without a timestamp, so that the same records give the same file.
        payload = gzip.compress(payload, mtime=0)
    if len(payload) > UINT32_MAX:
        raise DataError(
            f"A chunk of {len(payload)} bytes is too large for RecordIO; expected at most "
            f"{UINT32_MAX}. Write smaller records or chunks."
        )
    number = COMPRESSORS.index(compressor)
    return _HEADER.pack(_MAGIC, crc32(payload), number, len(payload), len(records)), payload


def parse_header(file: StoredFile, offset: int, data: bytes) -> Chunk:
    """Return the content of a header, after checking everything that can be checked in it.

    Args:
        file: For error messages, and for its size.
        offset: Start of the header.
        data: The bytes from there on, `HEADER_BYTES` of them or fewer at the end of the file.

    Raises:
        CorruptDataError: It is not a header, or the file ends before the chunk does.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptDataError(
            file.uri,
            offset,
            f"a chunk header of {HEADER_BYTES} bytes",
            f"the end of the file after {len(data)} bytes",
        )
    magic, checksum, compressor, size_bytes, num_records = _HEADER.unpack(data)
    if magic != _MAGIC:
        raise CorruptDataError(
            # Never the bytes: this may be any file that the user can read.
            file.uri,
            offset,
            f"a chunk, which starts with 0x{_MAGIC:08x}",
            "something else",
        )
    if compressor >= len(COMPRESSORS):
        raise CorruptDataError(
            file.uri,
            offset + _COMPRESSOR_AT,
            "compressor 0 (none), 1 (snappy) or 2 (gzip)",
            f"compressor {compressor}",
        )
    if num_records == 0:
        raise CorruptDataError(
            file.uri, offset + _COUNT_AT, "a chunk of at least one record", "0 records"
        )
    chunk = Chunk(offset, checksum, COMPRESSORS[compressor], size_bytes, num_records)
    # Indices of all records are made before a chunk is read, so the count is limited by its size.
    most_bytes = size_bytes * (1 if chunk.compressor == "none" else _MAX_TIMES)
    if num_records * LENGTH_BYTES > most_bytes:
        raise CorruptDataError(
            file.uri,
            offset + _COUNT_AT,
            f"at most {most_bytes // LENGTH_BYTES} records in a payload of {size_bytes} bytes",
            f"{num_records} records",
        )
    if chunk.end_bytes > file.size_bytes:
        raise CorruptDataError(
            file.uri,
            chunk.payload_bytes,
            f"a payload of {size_bytes} bytes, as the header of its chunk says",
            f"the end of the file after {file.size_bytes - chunk.payload_bytes} bytes",
        )
    return chunk


class ChunkReader:
    """Reads chunks one after the other, each into the memory of the previous one.

    For large chunks, such as those of 32 MiB that Go packages write, allocating new memory would
    take more time than reading and decompressing. A chunk is valid until the next one is read. A
    reader may only be used by one thread.
    """

    def __init__(self) -> None:
        self._stored = self._plain = _NO_MEMORY

    def read(self, file: StoredFile, chunk: Chunk) -> DecodedChunk:
        """Read a chunk, verify all of it, and return its records.

        Raises:
            CorruptDataError: The chunk is damaged.
            DataError: The file cannot be read.
        """
        size_bytes = HEADER_BYTES + chunk.size_bytes
        self._stored = _at_least(self._stored, size_bytes)
        num_read = file.read_into(self._stored, chunk.offset_bytes, size_bytes)
        if num_read != size_bytes:
            raise CorruptDataError(
                file.uri,
                chunk.offset_bytes,
                f"a chunk of {size_bytes} bytes, as when the file was opened",
                f"the end of the file after {num_read} bytes",
            )
        now = parse_header(file, chunk.offset_bytes, self._stored[:HEADER_BYTES])
        if now != chunk:
            raise CorruptDataError(
                file.uri, chunk.offset_bytes, f"{chunk}, as when the file was opened", f"{now}"
            )
        payload = memoryview(self._stored)[HEADER_BYTES:size_bytes]
        checksum = crc32(payload)
        if checksum != chunk.checksum:
            raise CorruptDataError(
                file.uri,
                chunk.offset_bytes,
                f"a payload with the CRC-32 0x{chunk.checksum:08x}, as the chunk's header says",
                f"0x{checksum:08x}",
            )
        if chunk.compressor == "none":
            # The records stay where they were read, after the header.
            return DecodedChunk(file, chunk, self._stored, HEADER_BYTES, size_bytes)
        try:
            plain, end = self._decompress(file, chunk, payload)
        except (cramjam.DecompressionError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise CorruptDataError(
                file.uri,
                chunk.payload_bytes,
                f"a payload compressed with {chunk.compressor}",
                str(error),
            ) from error
        return DecodedChunk(file, chunk, plain, 0, end)

    def exchange(self, memory: _Memory, spare: mmap.mmap | None) -> None:
        """Give the memory of the chunk read last to the caller, so that its records stay valid.

        Otherwise, the next chunk would overwrite them.

        Args:
            memory: Memory of that chunk.
            spare: Other memory, into which the next chunk may be read. None: allocate it then.
        """
        if memory is self._stored:
            self._stored = spare or _NO_MEMORY
        elif memory is self._plain:
            self._plain = spare or _NO_MEMORY

    def _decompress(
        self, file: StoredFile, chunk: Chunk, payload: memoryview
    ) -> tuple[_Memory, int]:
        """Decompress the payload of a chunk.

        Args:
            file: The file, for errors.
            chunk: Content of the header.
            payload: The payload as stored.

        Returns:
            Memory that starts with the decompressed payload, and the size of that payload.

        Raises:
            CorruptDataError: The payload would be implausibly large after decompression.
            Exception: The error of the decompressor, if the payload is damaged.
        """
        most = max(_FREE_BYTES, _MAX_EXPANSION * chunk.size_bytes)
        if chunk.compressor == "gzip":
            plain = _gunzip(payload, most)
            _check_plain(file, chunk, len(plain), most)
            return plain, len(plain)
        size_bytes = _snappy_bytes(payload)
        _check_plain(file, chunk, size_bytes, most)
        self._plain = _at_least(self._plain, size_bytes)
        # Also checks the CRC-32C of each frame, and rejects bytes after the last one.
        return self._plain, cramjam.snappy.decompress_into(payload, self._plain)


def _check_plain(file: StoredFile, chunk: Chunk, size_bytes: int, most: int) -> None:
    if size_bytes > most:
        raise CorruptDataError(
            file.uri,
            chunk.payload_bytes,
            f"a payload of at most {most} bytes after decompression",
            f"{size_bytes} bytes or more",
        )


def _gunzip(payload: memoryview, most: int) -> bytes:
    """Decompress gzip, which may consist of several streams.

    Args:
        payload: The compressed bytes.
        most: Maximum number of bytes to return. If there are more, one byte more is returned, so
            that the caller can tell.

    Raises:
        EOFError: The payload ends too early.
        zlib.error: The payload is damaged.
    """
    pieces: list[bytes] = []
    room = most + 1
    left: bytes | memoryview = payload
    while left and room:
        state = zlib.decompressobj(zlib.MAX_WBITS | _GZIP)
        pieces.append(state.decompress(left, room))
        room -= len(pieces[-1])
        if not state.eof and room:
            raise EOFError("the compressed data end without an end marker")
        # Streams may be concatenated, and padded with zeros.
        left = state.unused_data.lstrip(b"\0")
    return b"".join(pieces)


_Memory: TypeAlias = mmap.mmap | bytes
"""Memory whose slices are `bytes` objects (slices of a `bytearray` are not)."""


# Not created for each chunk: that would cost three system calls.
_NO_MEMORY = fresh_memory(0)


def _at_least(memory: mmap.mmap, size_bytes: int) -> mmap.mmap:
    """Return the given memory if it has at least `size_bytes`, else newly allocated memory."""
    if len(memory) >= size_bytes:
        return memory
    # Chunks differ a little in size, and touching new memory for the first time is slow.
    return fresh_memory(size_bytes + size_bytes // 4)


def _snappy_bytes(stream: memoryview) -> int:
    """Return the decompressed size of snappy frames, according to their headers."""
    size_bytes = 0
    position = 0
    while position + _FRAME_HEAD_BYTES <= len(stream):
        (head,) = _LENGTH.unpack_from(stream, position)
        kind, length = head & 0xFF, head >> 8
        if kind == _FRAME_PLAIN:
            size_bytes += max(length - _FRAME_CHECKSUM_BYTES, 0)
        elif kind == _FRAME_COMPRESSED:
            # No frame may claim more than it can contain: memory is allocated for it.
            data = position + _FRAME_HEAD_BYTES + _FRAME_CHECKSUM_BYTES
            size_bytes += min(_varint(stream[data : data + _VARINT_BYTES]), _FRAME_MOST_BYTES)
        position += _FRAME_HEAD_BYTES + length
    return size_bytes


def _varint(data: memoryview) -> int:
    value = 0
    for i, byte in enumerate(data):
        value |= (byte & ~_VARINT_CONTINUES) << (7 * i)
        if byte < _VARINT_CONTINUES:
            break
    return value


class DecodedChunk:
    """The records of one chunk, as slices of memory.

    Args:
        file: For error messages.
        chunk: Content of the header.
        memory: Contains the payload after decompression.
        base: Start of the payload in `memory`.
        end: End of the payload in `memory`.

    Raises:
        CorruptDataError: The total length of the records differs from the payload's size, or
            their number from the header's.
    """

    def __init__(
        self, file: StoredFile, chunk: Chunk, memory: _Memory, base: int, end: int
    ) -> None:
        self._memory = memory
        self._base = base
        self._num_records = chunk.num_records
        # The length of every record; None if they differ.
        self._length = _common_length(memory, base, end, chunk.num_records)
        # If they differ: the start of each record, and of one that would follow the last.
        self._starts: list[int] = []
        if self._length is None:
            self._starts = _walk(file, chunk, memory, base, end)

    def records(self, first: int, stop: int) -> list[bytes]:
        """Return records `first` to `stop` (exclusive) of this chunk."""
        memory = self._memory
        if self._length is None:
            starts = self._starts[first : stop + 1]
            return [memory[start : after - LENGTH_BYTES] for start, after in pairwise(starts)]
        stride = LENGTH_BYTES + self._length
        rows = memoryview(memory)[self._base + first * stride : self._base + stop * stride]
        return [record for (record,) in struct.iter_unpack(f"{LENGTH_BYTES}x{self._length}s", rows)]

    def unit(self) -> BytesUnit:
        """Return all records as a unit that uses the memory of this chunk, without copying it.

        The caller has to keep the reader from overwriting that memory: see `ChunkReader.exchange`.
        """
        starts, lengths = self._places(0, self._num_records)
        return BytesUnit(self._memory, starts, starts + lengths)

    def _places(self, first: int, stop: int) -> tuple[Indices, Indices]:
        """Return where records `first` to `stop` (exclusive) start in memory, and their lengths."""
        if self._length is None:
            edges = np.array(self._starts[first : stop + 1], dtype=np.int64)
            starts, lengths = edges[:-1], np.diff(edges) - LENGTH_BYTES
        else:
            stride = LENGTH_BYTES + self._length
            starts = np.arange(first, stop, dtype=np.int64) * stride + self._base + LENGTH_BYTES
            lengths = np.full(stop - first, self._length, dtype=np.int64)
        return starts, lengths


def _common_length(memory: _Memory, base: int, end: int, num_records: int) -> int | None:
    """Return the length of every record if it is the same for all of them, else None.

    That is common, as for images of one size. The lengths are then at regular distances in the
    payload, and comparing them as one array is a hundred times faster than walking from one to the
    next.

    Args:
        memory: Contains the payload after decompression.
        base: Start of the payload in `memory`.
        end: End of the payload in `memory`.
        num_records: Number of records, according to the header.
    """
    stride, rest = divmod(end - base, num_records)
    length = stride - LENGTH_BYTES
    if rest or length < 0:
        return None
    stored = np.ndarray((num_records,), "<u4", memory, offset=base, strides=(stride,))
    return length if bool((stored == length).all()) else None


def _walk(file: StoredFile, chunk: Chunk, memory: _Memory, base: int, end: int) -> list[int]:
    """Return the offset in `memory` of each record of a chunk, then where the next would start.

    Args:
        file: For errors.
        chunk: Content of the header.
        memory: Contains the payload after decompression.
        base: Start of the payload in `memory`.
        end: End of the payload in `memory`.

    Raises:
        CorruptDataError: The lengths of the records do not add up to the payload, or their number
            differs from the header's.
    """
    unpack = _LENGTH.unpack_from
    starts = []
    position = base
    last = end - LENGTH_BYTES
    while position <= last:
        start = position + LENGTH_BYTES
        starts.append(start)
        position = start + unpack(memory, position)[0]
    if position != end:
        # The record that is too long, or the bytes that are too few for the length of one.
        begun = starts[-1] - LENGTH_BYTES if position > end else position
        found = f"a record that ends at byte {position - base}"
        if position < end:
            found = f"{end - position} bytes too many"
        raise _misfit(file, chunk, begun - base, end - base, found)
    if len(starts) != chunk.num_records:
        raise CorruptDataError(
            file.uri,
            chunk.offset_bytes + _COUNT_AT,
            f"{chunk.num_records} records in this chunk, as its header says",
            f"{len(starts)}",
        )
    starts.append(position + LENGTH_BYTES)
    return starts


def _misfit(file: StoredFile, chunk: Chunk, begun: int, size: int, found: str) -> CorruptDataError:
    """Return the error for records that do not exactly fill a chunk's payload.

    Args:
        file: The file.
        chunk: Content of the chunk's header.
        begun: Byte of the payload, after decompression, where the mismatch begins.
        size: Size of the payload after decompression.
        found: What is wrong with the records there, in words; part of the message.
    """
    if chunk.compressor == "none":
        expected = f"records that fill the {size} bytes of their chunk"
        return CorruptDataError(file.uri, chunk.payload_bytes + begun, expected, found)
    # Decompressed bytes have no offset in the file.
    expected = f"records that fill the {size} bytes of their chunk after decompression"
    return CorruptDataError(
        file.uri, chunk.payload_bytes, expected, f"{found}, from decompressed byte {begun} on"
    )
