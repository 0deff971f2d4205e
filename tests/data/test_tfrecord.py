"""TFRecord: golden bytes of TensorFlow, round trips, damage, writing."""

from __future__ import annotations

import gzip
import pickle
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import inflated_file, tfrecord
from elasticdl.data.example import encode
from elasticdl.data.masked_crc import masked_crc32c
from elasticdl.data.stored_file import StoredFile
from elasticdl.data.tfrecord import COMPRESSORS, Compressor, TFRecordSource, TFRecordWriter
from elasticdl.errors import CorruptDataError, SchemaError, UsageError
from elasticdl.testing.record_source import check_damage_is_found, check_record_source

RECORDS = [b"Hello", b"", b"World,"]

# What TensorFlow 2.21 wrote.
GOLDEN = {
    "none": bytes.fromhex(
        "0500000000000000 eab2043e 48656c6c6f 8aeeb9be"
        "0000000000000000 29039807 d8ea82a2"
        "0600000000000000 7369d537 576f726c642c 629913bc"
    ),
    "gzip": bytes.fromhex(
        "1f8b080000000000000363658080579b58ec3c527372f2bbdeeddc071563d0649ec17ee355d3223628bf38f3"
        "aa79787e514e8a4ed24ce13d00608e0a683b000000"
    ),
    "zlib": bytes.fromhex(
        "789c63658080579b58ec3c527372f2bbdeeddc071563d0649ec17ee355d3223628bf38f3aa79787e514e8a4e"
        "d24ce13d00b9221064"
    ),
}


def opened(path: Path, content: bytes) -> TFRecordSource:
    path.write_bytes(content)
    return TFRecordSource([str(path)])


def all_of(source: TFRecordSource) -> list[bytes]:
    return source.read_bytes(0, source.num_records)


def fail_half_way() -> Iterator[bytes]:
    yield b"a"
    raise OSError("half-way")


def written(path: Path, records: Iterable[bytes], compressor: Compressor = "none") -> bytes:
    with TFRecordWriter(str(path), compressor) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


def refused(path: Path, content: bytes) -> tuple[int, str]:
    """Return where and why a file is refused, be it when opened or when read."""
    with pytest.raises(CorruptDataError) as caught:
        all_of(opened(path, content))
    assert caught.value.file == str(path)
    return caught.value.offset_bytes, str(caught.value)


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a few bytes have many blocks."""
    monkeypatch.setattr(inflated_file, "_BLOCK_BYTES", 16)
    monkeypatch.setattr(tfrecord, "_WALK_BYTES", 40)
    monkeypatch.setattr(tfrecord, "_READ_BYTES", 64)


# --- the format --------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_files_written_by_tensorflow_are_read(tmp_path: Path, compressor: Compressor) -> None:
    assert all_of(opened(tmp_path / "x", GOLDEN[compressor])) == RECORDS


def test_the_same_bytes_are_written_as_by_tensorflow(tmp_path: Path) -> None:
    assert written(tmp_path / "x", RECORDS) == GOLDEN["none"]


def test_compressed_files_match_those_of_tensorflow(tmp_path: Path) -> None:
    assert gzip.decompress(written(tmp_path / "x", RECORDS, "gzip")) == GOLDEN["none"]
    assert zlib.decompress(written(tmp_path / "x", RECORDS, "zlib")) == GOLDEN["none"]


def test_concatenated_gzip_files_are_read_as_one(tmp_path: Path) -> None:
    assert all_of(opened(tmp_path / "x", GOLDEN["gzip"] * 3)) == RECORDS * 3


@pytest.mark.parametrize("length", [0x088B1F, 0x9C78])
def test_file_that_looks_compressed_by_its_first_length_is_read(
    tmp_path: Path, length: int
) -> None:
    content = written(tmp_path / "x", [bytes(length), b"a"])
    assert content.startswith((b"\x1f\x8b\x08", b"\x78\x9c"))

    assert TFRecordSource([str(tmp_path / "x")]).read_bytes(1, 2) == [b"a"]


def test_empty_file_has_no_records(tmp_path: Path) -> None:
    assert written(tmp_path / "x", []) == b""
    assert TFRecordSource([str(tmp_path / "x")]).num_records == 0


def test_compressed_file_without_records_is_empty(tmp_path: Path) -> None:
    assert opened(tmp_path / "x", gzip.compress(b"")).num_records == 0


@pytest.mark.usefixtures("tiny_blocks")
@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.sampled_from(COMPRESSORS),
    st.lists(st.one_of(st.binary(max_size=60), st.integers(0, 5000).map(bytes)), max_size=12),
)
def test_any_range_of_written_records_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    compressor: Compressor,
    records: list[bytes],
) -> None:
    path = tmp_path_factory.mktemp("any") / "x"
    written(path, records, compressor)
    start = data.draw(st.integers(0, len(records)))
    stop = data.draw(st.integers(start, len(records)))

    source = TFRecordSource([str(path)])

    assert source.read_bytes(start, stop) == records[start:stop]


# --- reading -----------------------------------------------------------------------------------


def test_opening_skips_the_content_of_long_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "x", [bytes(1 << 20)] * 5)
    sizes = []
    read = StoredFile.read

    def read_and_count(file: StoredFile, start: int, stop: int) -> bytes:
        data = read(file, start, stop)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(StoredFile, "read", read_and_count)

    TFRecordSource([str(tmp_path / "x")])

    # Something to see what the file is and how long its records are, then a header a record.
    assert sizes == [12, 256 << 10, 12, 12, 12, 12, 0]


def test_range_reads_only_the_records_it_needs(tmp_path: Path) -> None:
    content = bytearray(written(tmp_path / "x", RECORDS * 2))
    content[12] ^= 1
    content[-5] ^= 1

    source = opened(tmp_path / "x", bytes(content))

    assert source.read_bytes(1, 5) == (RECORDS * 2)[1:5]


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("compressor", ["gzip", "zlib"])
def test_pickled_compressed_source_reads_at_any_position(
    tmp_path: Path, compressor: Compressor
) -> None:
    records = [np.random.default_rng(i).bytes(20) for i in range(30)]
    written(tmp_path / "x", records, compressor)

    source = pickle.loads(pickle.dumps(TFRecordSource([str(tmp_path / "x")])))

    assert [source.read_bytes(i, i + 1) for i in (29, 3, 17)] == [
        [records[29]],
        [records[3]],
        [records[17]],
    ]


def test_compressed_and_other_files_may_be_mixed(tmp_path: Path) -> None:
    uris = []
    for compressor in COMPRESSORS:
        written(tmp_path / compressor, RECORDS, compressor)
        uris.append(str(tmp_path / compressor))

    assert all_of(TFRecordSource(uris)) == RECORDS * 3


def test_record_that_is_not_an_example_is_named_by_file_and_number(tmp_path: Path) -> None:
    good = encode({"x": np.float32([1.0])})
    written(tmp_path / "a", [good])
    written(tmp_path / "b", [good, b"\xff\xff", good])
    source = TFRecordSource([str(tmp_path / "a"), str(tmp_path / "b")])

    with pytest.raises(SchemaError, match=r"/b, record 1\b"):
        source.read_records(1, 4, None)


@pytest.mark.parametrize("protocol", ["memory", "file"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_uris_are_written_and_read(tmp_path: Path, protocol: str, compressor: Compressor) -> None:
    uri = f"{protocol}://{tmp_path}/x.tfrecord"
    with TFRecordWriter(uri, compressor) as writer:
        for record in RECORDS:
            writer.write(record)

    check_record_source(TFRecordSource([uri]), RECORDS)


# --- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_every_damaged_byte_is_detected(tmp_path: Path, compressor: Compressor) -> None:
    check_damage_is_found(TFRecordSource, GOLDEN[compressor], RECORDS, tmp_path)


@pytest.mark.parametrize("cut", range(1, 23))
def test_file_that_ends_within_its_last_record_is_refused_at_opening(
    tmp_path: Path, cut: int
) -> None:
    # The last record begins at 37 and has 22 bytes.
    content = GOLDEN["none"][:-cut]
    if cut == 22:
        assert all_of(opened(tmp_path / "x", content)) == RECORDS[:2]
        return

    with pytest.raises(CorruptDataError, match=f"end of the file after {22 - cut} bytes") as caught:
        opened(tmp_path / "x", content)

    assert caught.value.offset_bytes == 37


@pytest.mark.parametrize("compressor", ["gzip", "zlib"])
def test_compressed_file_that_ends_too_early_is_refused_at_opening(
    tmp_path: Path, compressor: Compressor
) -> None:
    content = GOLDEN[compressor]
    # Of fewer bytes than these nobody can say that it was compressed.
    for stop in range(3, len(content)):
        with pytest.raises(CorruptDataError):
            opened(tmp_path / "x", content[:stop])


def test_compressed_file_with_trailing_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="compressed data"):
        opened(tmp_path / "x", GOLDEN["gzip"] + b"rest")


def test_truncated_record_in_a_compressed_file_explains_its_offset(
    tmp_path: Path,
) -> None:
    offset, message = refused(tmp_path / "x", gzip.compress(GOLDEN["none"][:-1]))

    assert offset == 37
    assert "a record of 22 bytes (counted after decompression), found" in message


def test_damaged_length_is_named_with_its_offset(tmp_path: Path) -> None:
    damaged = bytearray(GOLDEN["none"])
    damaged[22] ^= 1

    offset, message = refused(tmp_path / "x", bytes(damaged))

    assert offset == 21
    assert "found 12 bytes that do not agree" in message


def test_damaged_data_is_named_with_its_offset_and_both_checksums(tmp_path: Path) -> None:
    offset, message = refused(tmp_path / "x", GOLDEN["none"].replace(b"World", b"world"))

    assert offset == 49
    found = masked_crc32c(b"world,")
    assert f"data with the checksum 0xbc139962, found 0x{found:08x}" in message


def test_file_that_became_shorter_after_opening_is_refused_when_read(tmp_path: Path) -> None:
    source = opened(tmp_path / "x", GOLDEN["none"])
    (tmp_path / "x").write_bytes(GOLDEN["none"][:-1])

    with pytest.raises(CorruptDataError, match=r"59 bytes of records, as when .* after 58 bytes"):
        all_of(source)


@pytest.mark.parametrize("num_bytes", [1 << 62, 1 << 63, (1 << 64) - 1])
def test_length_beyond_the_file_is_refused_despite_its_checksum(
    tmp_path: Path, num_bytes: int
) -> None:
    length = struct.pack("<Q", num_bytes)
    content = length + struct.pack("<I", masked_crc32c(length)) + b"abc"

    offset, message = refused(tmp_path / "x", content)

    assert offset == 0
    assert "the end of the file after 15 bytes" in message


# --- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_exception_leaves_no_file_and_keeps_the_previous_one(
    tmp_path: Path, compressor: Compressor
) -> None:
    before = written(tmp_path / "x", RECORDS, compressor)

    with pytest.raises(OSError, match="half-way"):
        written(tmp_path / "x", fail_half_way(), compressor)

    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == before


def test_file_appears_when_it_is_closed(tmp_path: Path) -> None:
    writer = TFRecordWriter(str(tmp_path / "x"))
    writer.write(b"a")
    assert not (tmp_path / "x").exists()

    writer.close()
    writer.close()

    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_writing_to_a_closed_writer_is_refused(tmp_path: Path) -> None:
    with TFRecordWriter(str(tmp_path / "x")) as writer:
        pass

    with pytest.raises(ValueError, match="is closed"):
        writer.write(b"a")


def test_unknown_compressor_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'snappy'; choose one of none, gzip, zlib"):
        TFRecordWriter(str(tmp_path / "x"), "snappy")
