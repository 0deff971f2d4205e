"""Compact encoding of the byte offsets of a TFRecord file's records, for a data index.

    layout := compressed (0 or 1), bytes per length (1, 2, 4 or 8), the length of each record

Most records are shorter than 64 KiB: two bytes each, and less after the index is compressed.

Callers: `tfrecord.py`.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate, pairwise

import numpy as np

FRAME_BYTES = 16
"""Size of a record without its data: its length, and two checksums."""

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
# For fewer lengths, calling numpy takes longer than its work.
_FEW = 64


def pack_starts(starts: array[int], *, compressed: bool) -> bytes:
    """Pack the byte offsets of a file's records into the `layout` of its index entry.

    Args:
        starts: Byte offset of each record, then the end of the file.
        compressed: Whether the file is compressed; offsets are then counted after decompression.
    """
    if len(starts) <= _FEW:
        few = [stop - start - FRAME_BYTES for start, stop in pairwise(starts)]
        width = _width(max(few, default=0))
        return struct.pack(f"<BB{len(few)}{_CODES[width]}", compressed, width, *few)
    many = np.diff(np.frombuffer(starts, np.int64)) - FRAME_BYTES
    width = _width(int(many.max()))
    return struct.pack("<BB", compressed, width) + many.astype(f"<u{width}").tobytes()


def unpack_starts(layout: bytes) -> tuple[array[int], bool]:
    """Return the two arguments that `pack_starts` packed into a layout.

    Returns:
        The byte offset of each record, then the end of the file; and whether the file is
        compressed.

    Raises:
        struct.error: The layout is truncated.
        ValueError: The lengths are incomplete or negative.
        KeyError: The number of bytes of a length is none of 1, 2, 4 and 8.
    """
    compressed, width = struct.unpack_from("<BB", layout)
    code = _CODES[width]
    count, rest = divmod(len(layout) - 2, width)
    if rest:
        raise ValueError(f"lengths of {width} bytes in {len(layout) - 2}")
    if count < _FEW:
        few = struct.unpack_from(f"<{count}{code}", layout, 2)
        return array("q", accumulate((FRAME_BYTES + n for n in few), initial=0)), bool(compressed)
    lengths = np.frombuffer(layout, f"<u{width}", count, 2).astype(np.int64) + FRAME_BYTES
    if int(lengths.min()) < FRAME_BYTES:
        raise ValueError("a negative length")
    starts = array("q", [0])
    starts.frombytes(np.cumsum(lengths).tobytes())
    return starts, bool(compressed)


def _width(most: int) -> int:
    return next(width for width in _CODES if most < 1 << (8 * width))
