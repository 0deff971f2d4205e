"""Snappy's framing format, decompressed into memory that is there already.

    stream := start (frame)*                    start = ff 06 00 00 "sNaPpY"
    frame  := kind, length in 3 bytes, masked CRC-32C of the data, data

Data is 64 KiB at most, compressed or, where that would save little, as it is. The format:
https://github.com/google/snappy/blob/main/framing_format.txt. What the data means is not known
here.

Callers: `recordio_chunk.py`.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import cramjam

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD = struct.Struct("<I")
_CHECKSUM_BYTES = 4
_COMPRESSED, _PLAIN = 0x00, 0x01
_MOST_BYTES = 1 << 16
_VARINT_BYTES, _VARINT_CONTINUES = 3, 0x80
_START = b"\xff\x06\x00\x00sNaPpY"
# A third of a millisecond of decompressing, where starting a thread takes a fifth of that.
_WORTH_A_THREAD_BYTES = 1 << 20


class Frame(NamedTuple):
    """Where a frame starts in a stream, and where its data does after decompression."""

    position: int
    start: int


def find_frames(stream: memoryview) -> list[Frame]:
    """Return the frames of a stream and one behind the last, as they claim to be.

    Nothing is checked here; a damaged stream gives some list, and no error.
    """
    frames = []
    position = start = 0
    while position + _HEAD.size <= len(stream):
        frames.append(Frame(position, start))
        (head,) = _HEAD.unpack_from(stream, position)
        kind, length = head & 0xFF, head >> 8
        data = position + _HEAD.size + _CHECKSUM_BYTES
        if kind == _PLAIN:
            start += max(length - _CHECKSUM_BYTES, 0)
        elif kind == _COMPRESSED:
            # No frame may claim more than it can hold: memory is made for it.
            start += min(_varint(stream[data : data + _VARINT_BYTES]), _MOST_BYTES)
        position += _HEAD.size + length
    frames.append(Frame(position, start))
    return frames


def decompress_frames(stream: memoryview, frames: Sequence[Frame], memory: memoryview) -> int:
    """Decompress a stream, two halves of a large one at the same time.

    Args:
        stream: The bytes.
        frames: What `find_frames` returned for them.
        memory: Where to, at least `frames[-1].start` bytes.

    Returns:
        How many bytes it came to.

    Raises:
        cramjam.DecompressionError: It is no such stream, a frame's checksum is another, or
            something follows the last frame.
    """
    size_bytes = frames[-1].start
    if size_bytes < _WORTH_A_THREAD_BYTES or _num_processors() == 1:
        return _decompress(stream, memory)
    middle = frames[bisect_left(frames, size_bytes // 2, key=lambda frame: frame.start)]
    # The second half must look like a stream of its own.
    second = b"".join((_START, stream[middle.position :]))
    with ThreadPoolExecutor(1) as other_thread:
        rest = other_thread.submit(_decompress, second, memory[middle.start :])
        num_bytes = _decompress(stream[: middle.position], memory[: middle.start])
        num_bytes += rest.result()
    if num_bytes != size_bytes:
        raise cramjam.DecompressionError(
            f"snappy frames of {num_bytes} bytes that claim to be of {size_bytes}"
        )
    return num_bytes


def _decompress(stream: memoryview | bytes, memory: memoryview) -> int:
    num_bytes: int = cramjam.snappy.decompress_into(stream, memory)
    return num_bytes


def _varint(data: memoryview) -> int:
    value = 0
    for i, byte in enumerate(data):
        value |= (byte & ~_VARINT_CONTINUES) << (7 * i)
        if byte < _VARINT_CONTINUES:
            break
    return value


def _num_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
