"""Snappy frames: both ways to decompress them, and what is refused."""

from __future__ import annotations

import struct

import cramjam
import numpy as np
import pytest

from elasticdl.data import snappy_frames
from elasticdl.data.snappy_frames import Frame, decompress_frames, find_frames
from elasticdl.data.tfrecord import masked_crc32c

START = b"\xff\x06\x00\x00sNaPpY"
NOISE = np.random.default_rng(0).bytes(700_000)
TEXT = b"compresses well " * 60_000
SKIPPED = b"\xfe\x03\x00\x00abc"


def plain_frame(data: bytes) -> bytes:
    head = b"\x01" + struct.pack("<I", len(data) + 4)[:3]
    return head + struct.pack("<I", masked_crc32c(data)) + data


def many_frames(data: bytes) -> bytes:
    """Return a stream of as many frames as a writer makes that writes each value by itself."""
    return START + b"".join(plain_frame(data[i : i + 100]) for i in range(0, len(data), 100))


@pytest.fixture(params=[1, 2], ids=["one processor", "two processors"], autouse=True)
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snappy_frames, "_num_processors", lambda: request.param)


def decompressed(stream: bytes) -> bytes:
    frames = find_frames(memoryview(stream))
    memory = bytearray(frames[-1].start)
    num_bytes = decompress_frames(memoryview(stream), frames, memoryview(memory))
    return bytes(memory[:num_bytes])


@pytest.mark.parametrize(
    "data", [b"", b"a", NOISE, TEXT, NOISE + TEXT, TEXT + NOISE, TEXT[:10] * 200_000]
)
def test_what_was_compressed_comes_back(data: bytes) -> None:
    assert decompressed(bytes(cramjam.snappy.compress(data))) == data
    assert decompressed(many_frames(data)) == data


def test_frames_that_hold_nothing_are_stepped_over() -> None:
    half = bytes(cramjam.snappy.compress(NOISE))

    assert decompressed(half + SKIPPED + half + SKIPPED) == NOISE * 2


@pytest.mark.parametrize("at", [0, 20, 400_000, 799_999, 1_000_000, -1])
def test_damage_is_found_in_both_halves(at: int) -> None:
    stream = bytearray(cramjam.snappy.compress(NOISE + NOISE))
    stream[at] ^= 1

    with pytest.raises(cramjam.DecompressionError):
        decompressed(bytes(stream))


@pytest.mark.parametrize("rest", [b"\0", b"rest", START[:-1]])
def test_nothing_may_follow_the_last_frame(rest: bytes) -> None:
    with pytest.raises(cramjam.DecompressionError):
        decompressed(bytes(cramjam.snappy.compress(NOISE * 2)) + rest)


def test_frame_that_claims_another_size_is_refused() -> None:
    claims_more = b"\x00" + struct.pack("<I", 8)[:3] + bytes(4) + b"\xff\xff\x03\0"
    whole = bytes(cramjam.snappy.compress(NOISE * 2))

    with pytest.raises(cramjam.DecompressionError):
        decompressed(whole + claims_more)


def test_halves_that_do_not_meet_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snappy_frames, "_num_processors", lambda: 2)
    stream = memoryview(bytes(cramjam.snappy.compress(NOISE * 2)))
    frames = [Frame(position, start + 1) for position, start in find_frames(stream)]

    with pytest.raises(cramjam.DecompressionError, match="1400000 .* claim to be of 1400001"):
        decompress_frames(stream, frames, memoryview(bytearray(1_400_001)))


def test_frame_that_claims_to_be_huge_costs_no_memory() -> None:
    frame = b"\x00" + struct.pack("<I", 7)[:3] + bytes(4) + b"\xff\xff\x7f"

    assert find_frames(memoryview(frame * 10))[-1].start == 10 << 16
