"""Index of RecordIO chunks: the chunks of many files as one table, with 13 bytes per chunk.

A hundred thousand files are opened with an index in a fraction of a second, since no object is made
for a file or a chunk before it is read.

With a chunk's checksum in the index, reading the chunk detects every change of the file: the
modification time need not be the same, so copies of the file work as well.

Callers: `recordio.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.data_index import bad_entry, entry_of
from elasticdl.data.recordio_chunk import COMPRESSORS, HEADER_BYTES, Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.data_index import FileEntry
    from elasticdl.data.stored_file import StoredFile

_CHUNK = np.dtype(
    [("size_bytes", "<u4"), ("num_records", "<u4"), ("checksum", "<u4"), ("compressor", "u1")]
)


def pack(file: StoredFile, chunks: Sequence[Chunk]) -> FileEntry:
    """Return the index entry of a file with the given chunks."""
    rows = [
        (size_bytes, num_records, checksum, COMPRESSORS.index(compressor))
        for _, checksum, compressor, size_bytes, num_records in chunks
    ]
    num_records = sum(chunk.num_records for chunk in chunks)
    return entry_of(file, num_records, np.array(rows, _CHUNK).tobytes())


class ChunkTable:
    """The chunks of some files, numbered over all of them.

    Args:
        entries: The files.

    Attributes:
        num_records: int64 [chunks], number of records in each chunk.
        size_bytes: int64 [chunks], size of each payload as stored.
        compressed: int64, the numbers of the compressed chunks.
        firsts: int64 [chunks + 1], the number of each chunk's first record, counted over all files,
            and one past the last record.

    Raises:
        CorruptDataError: The chunks of a file contradict the rest of its entry.
    """

    def __init__(self, entries: Sequence[FileEntry]) -> None:
        for entry in entries:
            if len(entry.layout) % _CHUNK.itemsize:
                raise bad_entry(entry, f"{len(entry.layout)} bytes")
        self._rows = np.frombuffer(b"".join([entry.layout for entry in entries]), _CHUNK)
        self.num_records = self._rows["num_records"].astype(np.int64)
        self.size_bytes = self._rows["size_bytes"].astype(np.int64)
        self.firsts = np.concatenate(([0], np.cumsum(self.num_records)))
        # Start of each chunk and end of the last one, if all files were one.
        self._starts = np.concatenate(([0], np.cumsum(self.size_bytes + HEADER_BYTES)))
        # The number of the first chunk of each file, and one past the last one.
        counts = [len(entry.layout) // _CHUNK.itemsize for entry in entries]
        self._file_firsts = [*accumulate(counts, initial=0)]
        self._check(entries)

    @property
    def compressed(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The numbers of the compressed chunks."""
        return np.flatnonzero(self._rows["compressor"])

    def file_of(self, index: int) -> int:
        """Return the index of the file that contains a chunk."""
        return bisect_right(self._file_firsts, index) - 1

    def of_file(self, file_index: int) -> range:
        """Return the range of the chunks of a file, by their numbers over all files."""
        return range(self._file_firsts[file_index], self._file_firsts[file_index + 1])

    def chunk(self, index: int) -> Chunk:
        """Return a chunk by its number."""
        size_bytes, num_records, checksum, compressor = self._rows[index].item()
        offset = self._starts[index] - self._starts[self._file_firsts[self.file_of(index)]]
        return Chunk(int(offset), checksum, COMPRESSORS[compressor], size_bytes, num_records)

    def _check(self, entries: Sequence[FileEntry]) -> None:
        borders = np.array(self._file_firsts)
        sizes, counts = np.diff(self._starts[borders]), np.diff(self.firsts[borders])
        good = sizes == [entry.size_bytes for entry in entries]
        good &= counts == [entry.num_records for entry in entries]
        unknown = np.flatnonzero(self._rows["compressor"] >= len(COMPRESSORS))
        good[[self.file_of(int(index)) for index in unknown]] = False
        if not good.all():
            bad = int(np.argmin(good))
            found = f"chunks of {sizes[bad]} bytes with {counts[bad]} records"
            raise bad_entry(entries[bad], found)
