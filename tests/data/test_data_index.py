"""An index travels as bytes: compact, with nothing in them that runs, and damage is found."""

from __future__ import annotations

import zlib

import pytest

from elasticdl.data import data_index
from elasticdl.data.data_index import DataIndex, FileEntry, decode, encode
from elasticdl.errors import CorruptDataError

INDEX = DataIndex(
    "recordio",
    (FileEntry("a\nb", 7, "1", 3, b"\x00\x01"), FileEntry("c", 0, "", 0, b"")),
)


def test_an_index_survives_a_round_trip() -> None:
    assert decode(encode(INDEX), "here") == INDEX
    assert decode(encode(DataIndex("csv", ())), "here") == DataIndex("csv", ())
    typed = DataIndex("csv", (), (("x", "int64"), ("y", "binary")))
    assert decode(encode(typed), "here") == typed


def test_every_damaged_byte_is_detected() -> None:
    data = encode(INDEX)
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 1
        with pytest.raises(CorruptDataError, match="^here: damaged at byte"):
            decode(bytes(damaged), "here")


def test_every_truncation_is_detected() -> None:
    data = encode(INDEX)
    for length in range(len(data)):
        with pytest.raises(CorruptDataError, match="^here: damaged at byte"):
            decode(data[:length], "here")


def whole(body: bytes, body_bytes: int | None = None) -> bytes:
    """Return a body as an index that is not damaged."""
    size = len(body) if body_bytes is None else body_bytes
    checked = size.to_bytes(8, "little") + zlib.compress(body)
    return b"ELDLIDX1" + zlib.crc32(checked).to_bytes(4, "little") + checked


@pytest.mark.parametrize(
    "body",
    [
        b"",
        (2**60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (48).to_bytes(8, "little") + b'{"format": "pickle", "uris": [], "versions": []}',
        (49).to_bytes(8, "little") + b'{"format": "csv", "uris": ["a"], "versions": [1]}',
        (51).to_bytes(8, "little") + b'{"format": "csv", "uris": ["a"], "versions": ["b"]}',
        (60).to_bytes(8, "little")
        + b'{"format": "csv", "uris": [], "versions": [], "types": [[1]]}'[:60],
        (62).to_bytes(8, "little")
        + b'{"format": "csv", "uris": [], "versions": [], "types": [[1,2]]}'[:62],
    ],
)
def test_an_invalid_body_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptDataError, match="^here: damaged"):
        decode(whole(body), "here")


def test_a_small_file_cannot_allocate_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_index, "_FREE_BYTES", 1000)

    with pytest.raises(CorruptDataError, match="at most"):
        decode(whole(bytes(100_000)), "here")
    with pytest.raises(CorruptDataError, match="bytes where 900 should be"):
        decode(whole(bytes(100_000), 900), "here")


def test_an_extremely_compressible_index_can_be_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_index, "_FREE_BYTES", 1000)
    index = DataIndex("tfrecord", (FileEntry("a", 7, "1", 3, bytes(100_000)),))

    assert decode(encode(index), "here") == index


def test_a_hundred_thousand_small_files_take_a_few_megabytes() -> None:
    files = (
        FileEntry(f"s3://bucket/some/folder/part-{i:06}.recordio", 50_000 + i * 7919 % 999,
                  str(1_700_000_000_000_000_000 + i * 7_919_000), 16, i.to_bytes(13, "little"))
        for i in range(100_000)
    )  # fmt: skip

    assert len(encode(DataIndex("recordio", tuple(files)))) < 4e6
