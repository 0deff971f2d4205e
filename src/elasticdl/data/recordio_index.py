"""The chunks of a RecordIO file, packed for an index: 13 bytes a chunk.

With a chunk's checksum in the index, reading it finds every change of the file: no time of the
file needs to be the same, so that copies of it do as well.

Callers: `recordio.py`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from elasticdl.data.data_index import entry_of
from elasticdl.data.recordio_chunk import COMPRESSORS, Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.data_index import FileEntry
    from elasticdl.data.stored_file import StoredFile

# Size of the payload, number of records, checksum, compressor.
_CHUNK = struct.Struct("<IIIB")


def pack(file: StoredFile, chunks: Sequence[Chunk]) -> FileEntry:
    """Return what an index says of a file with some chunks."""
    layout = b"".join(
        [
            _CHUNK.pack(size_bytes, num_records, checksum, COMPRESSORS.index(compressor))
            for _, checksum, compressor, size_bytes, num_records in chunks
        ]
    )
    return entry_of(file, sum(chunk.num_records for chunk in chunks), layout)


def unpack(entry: FileEntry) -> tuple[StoredFile, list[Chunk]]:
    """Return the file and its chunks.

    Raises:
        ValueError: The entry makes no sense.
        struct.error: It is cut off.
        IndexError: It names an unknown compressor.
    """
    chunks = []
    offset = num_records = 0
    for size_bytes, count, checksum, compressor in _CHUNK.iter_unpack(entry.layout):
        chunk = Chunk(offset, checksum, COMPRESSORS[compressor], size_bytes, count)
        chunks.append(chunk)
        offset = chunk.end_bytes
        num_records += count
    if (offset, num_records) != (entry.size_bytes, entry.num_records):
        raise ValueError(f"chunks of {offset} bytes with {num_records} records")
    return entry.counted_file(), chunks
