"""Random access to a gzip- or zlib-compressed file, by position in the decompressed bytes.

Such a file can only be decompressed from its start. During the first pass, the state of the
decompressor is kept every 2 MiB of compressed bytes. After that, reading at any position only
decompresses the block of 2 MiB that contains it, and not all bytes before it:

    compressed   |--block 0--|--block 1--|--block 2--|--
    kept states  ^           ^           ^           ^

A kept state takes 45 KB. States are not sent to another process: there the file is
decompressed again, as far as it is read. The bytes are not interpreted here.

Callers: `tfrecord.py`, `csv_index.py`.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from elasticdl.errors import CorruptDataError

if TYPE_CHECKING:
    from elasticdl.data.stored_file import StoredFile

_BLOCK_BYTES = 2 << 20
# For zlib: the largest window, and detect gzip or zlib from the stream.
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class InflatedFile:
    """The decompressed bytes of a file; may be read from several threads.

    Attributes:
        uri: URI of the compressed file.
        stored: The compressed file.
        offset_note: Text that error messages put after a byte offset: " (counted after
            decompression)".

    Args:
        stored: The compressed file, not empty.
    """

    offset_note = " (counted after decompression)"

    def __init__(self, stored: StoredFile) -> None:
        self.uri = stored.uri
        self.stored = stored
        self._num_blocks = -(-stored.size_bytes // _BLOCK_BYTES)
        # Start of each block after decompression, and the end of the last one, as far as known.
        self._starts = [0]
        self._begin()

    def _begin(self) -> None:
        """Create the lock and the caches, which are not pickled; also called after unpickling."""
        self._lock = threading.Lock()
        self._last = _LastBlock()
        # The state of the decompressor before each block, as far as decompressed here.
        self._states = [zlib.decompressobj(_GZIP_OR_ZLIB)]

    @property
    def size_bytes(self) -> int:
        """Size after decompression; decompresses the rest of the file first.

        Raises:
            CorruptDataError: The file does not decompress, or ends too early.
            DataError: The file cannot be read.
        """
        with self._lock:
            while len(self._starts) <= self._num_blocks:
                self._advance()
            return self._starts[-1]

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` (exclusive), fewer at the end of the file.

        Raises:
            CorruptDataError: The file does not decompress, or ends too early.
            DataError: The file cannot be read.
        """
        pieces = []
        while start < stop:
            index = self._find(start)
            if index == self._num_blocks:
                break
            first = self._starts[index]
            piece = self._block(index)[start - first : stop - first]
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)

    def _find(self, position: int) -> int:
        """Return the number of the compressed block that contains a decompressed position.

        Decompresses the file as far as needed. For a position after the end of the file, the result
        is the total number of blocks.
        """
        with self._lock:
            while self._starts[-1] <= position and len(self._starts) <= self._num_blocks:
                self._advance()
            # The rightmost that starts here or before: blocks may decompress to nothing.
            return bisect_right(self._starts, position) - 1

    def _block(self, index: int) -> bytes:
        """Return the decompressed bytes of a block; each thread caches those of its last block."""
        last = self._last
        if last.index != index:
            with self._lock:
                while len(self._states) <= index:
                    self._advance()
                state = self._states[index].copy()
            last.index, last.data = index, self._inflate(index, state)[0]
        return last.data

    def _advance(self) -> None:
        """Decompress the next block, after those decompressed so far; the caller holds the lock."""
        index = len(self._states) - 1
        data, state = self._inflate(index, self._states[index].copy())
        if index == self._num_blocks - 1 and not state.eof:
            raise CorruptDataError(
                self.uri,
                self.stored.size_bytes,
                "the end of the compressed data",
                "the end of the file",
            )
        self._states.append(state)
        if len(self._starts) == index + 1:
            self._starts.append(self._starts[index] + len(data))
        # The caller reads this block next.
        self._last.index, self._last.data = index, data

    def _inflate(self, index: int, state: Any) -> tuple[bytes, Any]:
        """Decompress a block.

        Args:
            index: Number of the block.
            state: zlib's decompressor as it was before the block; it is changed.

        Returns:
            The decompressed bytes, and the decompressor for the next block.

        Raises:
            CorruptDataError: The block does not decompress.
            DataError: The file cannot be read.
        """
        offset = index * _BLOCK_BYTES
        data = self.stored.read(offset, offset + _BLOCK_BYTES)
        pieces = []
        try:
            while data:
                if state.eof:
                    # Compressed files may be concatenated: the next one starts here.
                    state = zlib.decompressobj(_GZIP_OR_ZLIB)
                pieces.append(state.decompress(data))
                data = state.unused_data
        except zlib.error as error:
            raise CorruptDataError(
                self.uri,
                offset,
                f"compressed data in the {_BLOCK_BYTES} bytes from here",
                str(error),
            ) from error
        return b"".join(pieces), state

    def __getstate__(self) -> dict[str, Any]:
        stays = ("_lock", "_last", "_states")
        return {name: value for name, value in vars(self).items() if name not in stays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()


class _LastBlock(threading.local):
    """Cache of the block that the current thread decompressed last."""

    index = -1
    data = b""
