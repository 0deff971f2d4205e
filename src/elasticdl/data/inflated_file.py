"""A gzip- or zlib-compressed file, read by position as if it were not.

Such a file can only be decompressed from its start. While that is done once, the state of the
decompressor is kept at each 2 MiB of compressed bytes, so that reading at a later position
costs one such block and not all that lies before:

    compressed   |--block 0--|--block 1--|--block 2--|--
    kept states  ^           ^           ^           ^

A kept state takes 45 KB. States do not travel to another process: there the file is
decompressed once more, as far as it is read. What the bytes mean is not known here.

Callers: `tfrecord.py`.
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
# For zlib: the largest window, and let the stream say whether it is gzip or zlib.
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class InflatedFile:
    """The decompressed bytes of a file; may be read from several threads.

    Attributes:
        uri: As it was given.
        counted: What an error message adds to an offset in this file.

    Args:
        stored: The compressed file, not empty.
    """

    counted = " (counted after decompression)"

    def __init__(self, stored: StoredFile) -> None:
        self.uri = stored.uri
        self._stored = stored
        self._num_blocks = -(-stored.size_bytes // _BLOCK_BYTES)
        # Where each block starts after decompression, and the end of the last, as far as known.
        self._starts = [0]
        self._begin()

    def _begin(self) -> None:
        """Make what does not travel to another process."""
        self._lock = threading.Lock()
        self._last = _LastBlock()
        # The decompressor as it was before each block, as far as they were decompressed here.
        self._states = [zlib.decompressobj(_GZIP_OR_ZLIB)]

    @property
    def size_bytes(self) -> int:
        """Size after decompression; decompresses what was not yet.

        Raises:
            CorruptDataError: The file does not decompress, or ends too early.
            DataError: The storage refuses.
        """
        with self._lock:
            while len(self._starts) <= self._num_blocks:
                self._advance()
            return self._starts[-1]

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` (exclusive), fewer where the file ends before.

        Raises:
            CorruptDataError: The file does not decompress, or ends too early.
            DataError: The storage refuses.
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
        """Return the block a position lies in, the number of blocks if it lies behind them."""
        with self._lock:
            while self._starts[-1] <= position and len(self._starts) <= self._num_blocks:
                self._advance()
            # The rightmost that starts here or before: blocks may decompress to nothing.
            return bisect_right(self._starts, position) - 1

    def _block(self, index: int) -> bytes:
        """Return a block after decompression; each thread keeps its last one."""
        last = self._last
        if last.index != index:
            with self._lock:
                while len(self._states) <= index:
                    self._advance()
                state = self._states[index].copy()
            last.index, last.data = index, self._inflate(index, state)[0]
        return last.data

    def _advance(self) -> None:
        """Decompress the first block without a state behind it; the lock is held."""
        index = len(self._states) - 1
        data, state = self._inflate(index, self._states[index].copy())
        if index == self._num_blocks - 1 and not state.eof:
            raise CorruptDataError(
                self.uri,
                self._stored.size_bytes,
                "the end of the compressed data",
                "the end of the file",
            )
        self._states.append(state)
        if len(self._starts) == index + 1:
            self._starts.append(self._starts[index] + len(data))
        # Who advances reads this very block next.
        self._last.index, self._last.data = index, data

    def _inflate(self, index: int, state: Any) -> tuple[bytes, Any]:
        """Return a block after decompression and the decompressor behind it."""
        offset = index * _BLOCK_BYTES
        data = self._stored.read(offset, offset + _BLOCK_BYTES)
        pieces = []
        try:
            while data:
                if state.eof:
                    # Compressed files may be joined: the next one starts here.
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
    """The block this thread decompressed last."""

    index = -1
    data = b""
