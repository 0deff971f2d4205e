"""RecordIO: golden bytes of the writers that came before, round trips, damage, writing."""

from __future__ import annotations

import gzip
import itertools
import os
import pickle
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import recordio, recordio_chunk
from elasticdl.data.example import encode
from elasticdl.data.masked_crc import masked_crc32c
from elasticdl.data.recordio import COMPRESSORS, Compressor, RecordIOSource, Writer
from elasticdl.errors import CorruptDataError, DataError, OutputError, SchemaError, UsageError
from elasticdl.testing.record_source import check_damage_is_found, check_record_source

GREETINGS = [b"Hello", b"World,", b"RecordIO!"]

# What pyrecordio 0.0.7 wrote: frames of up to 64 KiB, whatever the records are.
FEW_FRAMES = bytes.fromhex(
    "04030201 4c76a44b 01000000 32000000 03000000"
    "ff060000 734e61507059 01240000 2daf42ab"
    "05000000 48656c6c6f 06000000 576f726c642c 09000000 5265636f7264494f21"
)
# The later Go writer: each length and each record is a frame of its own.
FRAME_PER_WRITE = bytes.fromhex(
    "04030201 af2219b2 01000000 5a000000 03000000"
    "ff060000 734e61507059"
    "01080000 d9c69c43 05000000 01090000 8aeeb9be 48656c6c6f"
    "01080000 1c03ee55 06000000 010a0000 629913bc 576f726c642c"
    "01080000 a5b1b5a7 09000000 010d0000 97a1a571 5265636f7264494f21"
)
NOT_COMPRESSED = bytes.fromhex(
    "04030201 148c74a1 00000000 20000000 03000000"
    "05000000 48656c6c6f 06000000 576f726c642c 09000000 5265636f7264494f21"
)


def chunk_of(
    payload: bytes, num_records: int, compressor: int = 0, checksum: int | None = None
) -> bytes:
    """Return a chunk whose header fits its payload, so that only one thing is wrong with it."""
    found = zlib.crc32(payload) if checksum is None else checksum
    return struct.pack("<5I", 0x01020304, found, compressor, len(payload), num_records) + payload


def framed(*data: bytes) -> bytes:
    """Return snappy frames that hold their data as it is."""
    frames = [
        b"\x01" + struct.pack("<I", len(part) + 4)[:3] + struct.pack("<I", masked_crc32c(part))
        for part in data
    ]
    stream = b"\xff\x06\x00\x00sNaPpY"
    return stream + b"".join(itertools.chain(*zip(frames, data, strict=True)))


def unframed(payload: bytes) -> bytes:
    """Return what snappy frames hold, by another snappy than the one they were written with."""
    assert payload[:10] == b"\xff\x06\x00\x00sNaPpY"
    position, plain = 10, b""
    while position < len(payload):
        kind, length = (
            payload[position],
            int.from_bytes(payload[position + 1 : position + 4], "little"),
        )
        (checksum,) = struct.unpack_from("<I", payload, position + 4)
        data = payload[position + 8 : position + 4 + length]
        if kind == 0:
            size, shift = 0, 0
            for byte in data:
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            data = pa.Codec("snappy").decompress(data, size, asbytes=True)
        assert kind in {0, 1}
        assert len(data) <= 1 << 16
        assert masked_crc32c(data) == checksum
        plain += data
        position += 4 + length
    return plain


def opened(path: Path, content: bytes) -> RecordIOSource:
    path.write_bytes(content)
    return RecordIOSource([str(path)])


def all_of(source: RecordIOSource) -> list[bytes]:
    return source.read_bytes(0, source.num_records)


def fail_half_way() -> Iterator[bytes]:
    yield b"a"
    yield b"b"
    raise OSError("half-way")


def written(path: Path, records: Iterable[bytes], *args, **kwargs) -> bytes:
    with Writer(str(path), *args, **kwargs) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


# --- the format --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        FEW_FRAMES,
        FRAME_PER_WRITE,
        NOT_COMPRESSED,
        chunk_of(gzip.compress(NOT_COMPRESSED[20:], mtime=0), 3, compressor=2),
    ],
    ids=["few frames", "frame per write", "none", "gzip"],
)
def test_every_historical_layout_is_read(tmp_path: Path, content: bytes) -> None:
    assert all_of(opened(tmp_path / "x", content)) == GREETINGS


@pytest.mark.parametrize(
    ("compressor", "golden"), [("snappy", FEW_FRAMES), ("none", NOT_COMPRESSED)]
)
def test_the_same_bytes_are_written_as_by_the_original_writer(
    tmp_path: Path, compressor: Compressor, golden: bytes
) -> None:
    assert written(tmp_path / "x", GREETINGS, compressor) == golden


def test_another_snappy_implementation_reads_written_files(tmp_path: Path) -> None:
    text = b"compresses well " * 10_000
    noise = np.random.default_rng(0).bytes(100_000)

    content = written(tmp_path / "x", [text, noise], "snappy")

    lengths = struct.pack("<I", len(text)), struct.pack("<I", len(noise))
    assert unframed(content[20:]) == lengths[0] + text + lengths[1] + noise
    assert len(content) < 120_000


def test_gzip_is_written_without_a_timestamp(
    tmp_path: Path,
) -> None:
    content = written(tmp_path / "x", GREETINGS, "gzip")

    assert content[20 + 4 : 20 + 8] == bytes(4)
    assert gzip.decompress(content[20:]) == NOT_COMPRESSED[20:]


def test_chunk_ends_before_the_record_that_would_make_it_too_large(tmp_path: Path) -> None:
    written(tmp_path / "x", [b"a" * 5, b"b" * 4, b"c" * 2], "none", max_chunk_bytes=10)

    chunks = RecordIOSource([str(tmp_path / "x")]).chunks(0)

    assert [(chunk.offset_bytes, chunk.num_records) for chunk in chunks] == [(0, 2), (37, 1)]


def test_chunk_may_be_exactly_as_large_as_is_allowed(tmp_path: Path) -> None:
    written(tmp_path / "x", [b"a" * 5, b"b" * 5, b"c"], max_chunk_bytes=10)

    chunks = RecordIOSource([str(tmp_path / "x")]).chunks(0)

    assert [chunk.num_records for chunk in chunks] == [2, 1]


def test_record_larger_than_a_chunk_has_its_own_chunk(tmp_path: Path) -> None:
    written(tmp_path / "x", [b"a", b"b" * 11, b"c"], max_chunk_bytes=10)

    source = RecordIOSource([str(tmp_path / "x")])

    assert [chunk.num_records for chunk in source.chunks(0)] == [1, 1, 1]
    assert all_of(source) == [b"a", b"b" * 11, b"c"]


def test_chunk_of_empty_records_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordio, "_MAX_CHUNK_RECORDS", 3)
    written(tmp_path / "x", [b""] * 7)

    source = RecordIOSource([str(tmp_path / "x")])

    assert [chunk.num_records for chunk in source.chunks(0)] == [3, 3, 1]
    assert all_of(source) == [b""] * 7


def test_empty_file_has_no_records(tmp_path: Path) -> None:
    assert written(tmp_path / "x", []) == b""
    assert RecordIOSource([str(tmp_path / "x")]).num_records == 0


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.sampled_from(COMPRESSORS),
    st.lists(
        st.one_of(st.binary(max_size=6), st.integers(0, 70_000).map(bytes), st.just(b"abcd")),
        max_size=12,
    ),
    st.integers(1, 100_000),
)
def test_any_range_of_written_records_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    compressor: Compressor,
    records: list[bytes],
    max_chunk_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("any") / "x"
    written(path, records, compressor, max_chunk_bytes)
    start = data.draw(st.integers(0, len(records)))
    stop = data.draw(st.integers(start, len(records)))

    source = RecordIOSource([str(path)])

    assert source.read_bytes(start, stop) == records[start:stop]


def test_empty_and_padding_frames_are_skipped(tmp_path: Path) -> None:
    payload = framed(b"\5\0\0\0", b"Hello") + b"\xfe\x03\x00\x00abc" + framed(b"\0\0\0\0")

    assert all_of(opened(tmp_path / "x", chunk_of(payload, 2, compressor=1))) == [b"Hello", b""]


# --- reading -----------------------------------------------------------------------------------


def test_opening_reads_only_headers_and_reading_only_needed_chunks(tmp_path: Path) -> None:
    content = written(tmp_path / "x", [b"a" * 10, b"b" * 10, b"c" * 10], "none", max_chunk_bytes=10)
    # The payloads of the first and the last chunk are damaged; nobody needs them here.
    damaged = bytearray(content)
    damaged[30] ^= 1
    damaged[-1] ^= 1

    source = opened(tmp_path / "x", bytes(damaged))

    assert source.read_bytes(1, 2) == [b"b" * 10]


def test_small_ranges_of_one_chunk_read_it_once(tmp_path: Path) -> None:
    written(tmp_path / "x", GREETINGS)
    source = RecordIOSource([str(tmp_path / "x")])
    source.read_bytes(0, 1)

    (tmp_path / "x").unlink()

    assert source.read_bytes(1, 3) == GREETINGS[1:]


def test_unreadable_chunk_does_not_affect_the_previous_one(tmp_path: Path) -> None:
    content = written(tmp_path / "x", [b"a" * 9, b"b" * 9], "none", max_chunk_bytes=9)
    source = opened(tmp_path / "x", content[:-1] + b"?")
    source.read_bytes(0, 1)
    with pytest.raises(CorruptDataError):
        source.read_bytes(1, 2)

    assert source.read_bytes(0, 1) == [b"a" * 9]


def test_threads_read_different_chunks_concurrently(tmp_path: Path) -> None:
    records = [bytes([i]) * 1000 for i in range(100)]
    written(tmp_path / "x", records, max_chunk_bytes=5000)
    source = RecordIOSource([str(tmp_path / "x")])
    wrong = []

    def read(offset: int) -> None:
        for i in range(300):
            at = (i * 7 + offset) % 100
            if source.read_bytes(at, at + 1) != [records[at]]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(n * 25,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_process_does_not_overwrite_its_parents_buffer(tmp_path: Path) -> None:
    written(tmp_path / "x", [b"a" * 9, b"b" * 9], "none", max_chunk_bytes=9)
    source = RecordIOSource([str(tmp_path / "x")])
    source.read_bytes(0, 1)

    child = os.fork()
    if child == 0:
        os._exit(0 if source.read_bytes(1, 2) == [b"b" * 9] else 1)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert source.read_bytes(0, 1) == [b"a" * 9]


def test_used_source_can_be_sent_to_another_process(tmp_path: Path) -> None:
    written(tmp_path / "x", GREETINGS)
    source = RecordIOSource([str(tmp_path / "x")])
    source.read_bytes(0, 1)

    assert all_of(pickle.loads(pickle.dumps(source))) == GREETINGS


def test_record_that_is_not_an_example_is_named_by_file_and_number(tmp_path: Path) -> None:
    good = encode({"x": np.float32([1.0])})
    written(tmp_path / "a", [good])
    written(tmp_path / "b", [good, b"\xff\xff", good])
    source = RecordIOSource([str(tmp_path / "a"), str(tmp_path / "b")])

    with pytest.raises(SchemaError, match=r"/b, record 1\b"):
        source.read_records(1, 4, None)


@pytest.mark.parametrize("protocol", ["memory", "file"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_uris_are_written_and_read(tmp_path: Path, protocol: str, compressor: Compressor) -> None:
    uri = f"{protocol}://{tmp_path}/x.recordio"
    with Writer(uri, compressor, max_chunk_bytes=6) as writer:
        for record in GREETINGS:
            writer.write(record)

    check_record_source(RecordIOSource([uri]), GREETINGS)


# --- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [FEW_FRAMES, FRAME_PER_WRITE, NOT_COMPRESSED, FEW_FRAMES + NOT_COMPRESSED]
)
def test_every_damaged_byte_is_detected(tmp_path: Path, content: bytes) -> None:
    expected = GREETINGS * (content.count(b"\x04\x03\x02\x01"))

    check_damage_is_found(RecordIOSource, content, expected, tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    st.data(),
    st.sampled_from(COMPRESSORS),
    st.lists(st.binary(max_size=40), min_size=1, max_size=8),
    st.integers(1, 100),
)
def test_every_damaged_byte_of_any_file_is_detected(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    compressor: Compressor,
    records: list[bytes],
    max_chunk_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    content = written(folder / "x", records, compressor, max_chunk_bytes)
    offsets = data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5))

    check_damage_is_found(RecordIOSource, content, records, folder, offsets)


@pytest.mark.parametrize("cut", [1, 19, 20, 21, 69])
def test_file_that_ends_within_its_last_chunk_is_refused_at_opening(
    tmp_path: Path, cut: int
) -> None:
    with pytest.raises(CorruptDataError, match="the end of the file after") as caught:
        opened(tmp_path / "x", NOT_COMPRESSED + FEW_FRAMES[:cut])

    # The header begins at 52, the payload at 72.
    assert caught.value.offset_bytes == (52 if cut < 20 else 72)


def test_file_that_became_shorter_after_opening_is_refused_when_read(tmp_path: Path) -> None:
    source = opened(tmp_path / "x", FEW_FRAMES)
    (tmp_path / "x").write_bytes(FEW_FRAMES[:-1])

    with pytest.raises(CorruptDataError, match=r"70 bytes, as when .* after 69 bytes"):
        all_of(source)


def test_file_that_was_replaced_after_opening_is_refused_when_read(tmp_path: Path) -> None:
    source = opened(tmp_path / "x", NOT_COMPRESSED)
    other = chunk_of(struct.pack("<I", 28) + b"x" * 28, 1)
    assert len(other) == len(NOT_COMPRESSED)
    (tmp_path / "x").write_bytes(other)

    with pytest.raises(CorruptDataError, match=r"num_records=3.*as when.*num_records=1"):
        all_of(source)


def refused(path: Path, content: bytes) -> tuple[int, str]:
    """Return where and why a file is refused, be it when opened or when read."""
    with pytest.raises(CorruptDataError) as caught:
        all_of(opened(path, content))
    assert caught.value.file == str(path)
    return caught.value.offset_bytes, str(caught.value)


@pytest.mark.parametrize("compressor", [0, 1, 2])
def test_chunk_with_an_impossible_record_count_is_refused_at_opening(
    tmp_path: Path, compressor: int
) -> None:
    """Indices of all records are made before a chunk is read: here they would be 34 GB."""
    header = struct.pack("<5I", 0x01020304, 0, compressor, 4, 0xFFFFFFFF)

    with pytest.raises(CorruptDataError, match="found 4294967295 records") as caught:
        opened(tmp_path / "x", header + bytes(4))

    assert caught.value.offset_bytes == 16


@pytest.mark.parametrize("compressor", ["gzip", "snappy"])
def test_chunk_that_decompresses_beyond_the_limit_is_refused(
    tmp_path: Path, compressor: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer(str(tmp_path / "x"), compressor) as writer:
        writer.write(bytes(1_000_000))
    source = RecordIOSource([str(tmp_path / "x")])
    assert all_of(source) == [bytes(1_000_000)]
    monkeypatch.setattr(recordio_chunk, "_FREE_BYTES", 1000)
    monkeypatch.setattr(recordio_chunk, "_MAX_EXPANSION", 2)

    with pytest.raises(CorruptDataError, match=r"at most \d+ bytes after decompression"):
        all_of(RecordIOSource([str(tmp_path / "x")]))


@pytest.mark.parametrize("padding", [b"", bytes(7)])
def test_concatenated_and_padded_gzip_streams_are_read(tmp_path: Path, padding: bytes) -> None:
    one, other = (struct.pack("<I", 3) + each for each in (b"abc", b"def"))
    payload = gzip.compress(one) + gzip.compress(other) + padding
    header = struct.pack("<5I", 0x01020304, zlib.crc32(payload), 2, len(payload), 2)

    assert all_of(opened(tmp_path / "x", header + payload)) == [b"abc", b"def"]


def test_wrong_magic_number_is_named_with_its_offset(tmp_path: Path) -> None:
    offset, message = refused(tmp_path / "x", NOT_COMPRESSED + b"\x05" + NOT_COMPRESSED[1:])

    assert offset == 52
    assert "starts with 0x01020304, found something else" in message


def test_unknown_compressor_is_named_with_its_offset(tmp_path: Path) -> None:
    offset, message = refused(tmp_path / "x", chunk_of(b"\0\0\0\0", 1, compressor=3))

    assert offset == 8
    assert "found compressor 3" in message


def test_chunk_without_records_is_refused(
    tmp_path: Path,
) -> None:
    offset, message = refused(tmp_path / "x", chunk_of(b"", 0))

    assert offset == 16
    assert "found 0 records" in message


def test_wrong_checksum_is_named_with_both_values(tmp_path: Path) -> None:
    damaged = FEW_FRAMES[:-1] + b"?"
    offset, message = refused(tmp_path / "x", NOT_COMPRESSED + damaged)

    assert offset == 52
    assert (
        f"0x4ba4764c, as the chunk's header says, found 0x{zlib.crc32(damaged[20:]):08x}" in message
    )


def test_wrong_number_of_records_is_named_with_both_values(tmp_path: Path) -> None:
    offset, message = refused(tmp_path / "x", chunk_of(NOT_COMPRESSED[20:], 4))

    assert offset == 16
    assert "4 records in this chunk, as its header says, found 3" in message


def test_wrong_number_of_equally_long_records_is_refused(tmp_path: Path) -> None:
    payload = (struct.pack("<I", 4) + b"abcd") * 4

    _, message = refused(tmp_path / "x", chunk_of(payload, 2))

    assert "2 records in this chunk, as its header says, found 4" in message


def test_record_that_does_not_end_within_its_chunk_is_named_with_its_offset(
    tmp_path: Path,
) -> None:
    payload = struct.pack("<I", 2) + b"ab" + struct.pack("<I", 9) + b"abc"

    offset, message = refused(tmp_path / "x", chunk_of(payload, 2))

    assert offset == 26
    assert (
        "records that fill the 13 bytes of their chunk, found a record that ends at byte 19"
        in message
    )


def test_bytes_after_the_last_record_of_a_chunk_are_named(
    tmp_path: Path,
) -> None:
    offset, message = refused(tmp_path / "x", chunk_of(NOT_COMPRESSED[20:] + b"\0\0", 3))

    assert offset == 52
    assert "2 bytes too many" in message


def test_offset_in_a_compressed_chunk_counts_decompressed_bytes(tmp_path: Path) -> None:
    payload = framed(struct.pack("<I", 2) + b"ab" + struct.pack("<I", 9) + b"abc")

    offset, message = refused(tmp_path / "x", chunk_of(payload, 2, compressor=1))

    assert offset == 20
    assert (
        "after decompression, found a record that ends at byte 19, from decompressed byte "
        "6" in message
    )


@pytest.mark.parametrize(
    ("payload", "compressor"),
    [
        (framed(b"\0\0\0\0")[:-1], 1),
        (framed(b"\0\0\0\0") + b"\x00", 1),
        (framed(b"\0\0\0\0").replace(b"sNaPpY", b"snappy"), 1),
        (framed(b"\0\0\0\0")[:-4] + b"\0\0\0\1", 1),
        (b"\xff\x06\x00\x00sNaPpY" + b"\x00\xff\xff\xff", 1),
        (b"no gzip", 2),
        (gzip.compress(b"\0\0\0\0", mtime=0)[:-1], 2),
        (gzip.compress(b"\0\0\0\0", mtime=0)[:-8] + bytes(8), 2),
        (gzip.compress(b"\0\0\0\0", mtime=0) + b"rest", 2),
    ],
)
def test_payload_that_does_not_decompress_is_refused(
    tmp_path: Path, payload: bytes, compressor: int
) -> None:
    offset, _ = refused(tmp_path / "x", chunk_of(payload, 1, compressor))

    assert offset == 20


def test_frame_that_claims_to_be_huge_allocates_no_memory() -> None:
    frame = b"\x00" + struct.pack("<I", 7)[:3] + bytes(4) + b"\xff\xff\x7f"

    assert recordio_chunk._snappy_bytes(memoryview(frame * 10)) == 10 << 16


# --- writing -----------------------------------------------------------------------------------


def test_file_appears_when_it_is_closed(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path / "x"))
    writer.write(b"a")
    assert not (tmp_path / "x").exists()

    writer.close()
    writer.close()

    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_exception_leaves_no_file_and_keeps_the_previous_one(tmp_path: Path) -> None:
    before = written(tmp_path / "x", GREETINGS)

    with pytest.raises(OSError, match="half-way"):
        written(tmp_path / "x", fail_half_way(), max_chunk_bytes=1)

    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == before


def test_writing_to_a_closed_writer_is_refused(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "x")) as writer:
        pass

    with pytest.raises(ValueError, match="is closed"):
        writer.write(b"a")


def test_buffer_may_be_reused_after_writing(tmp_path: Path) -> None:
    buffer = bytearray(b"first")
    with Writer(str(tmp_path / "x")) as writer:
        writer.write(buffer)
        buffer[:] = b"other"
        writer.write(memoryview(buffer))

    assert all_of(RecordIOSource([str(tmp_path / "x")])) == [b"first", b"other"]


@pytest.mark.parametrize("record", ["text", 5, None])
def test_record_that_is_not_bytes_is_refused(tmp_path: Path, record: object) -> None:
    with pytest.raises(TypeError), Writer(str(tmp_path / "x")) as writer:
        writer.write(record)


def test_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere/x cannot be written: No such file"):
        Writer(str(tmp_path / "nowhere" / "x"))


def test_unknown_compressor_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'zip'; choose one of none, snappy, gzip"):
        Writer(str(tmp_path / "x"), "zip")


@pytest.mark.parametrize("size", [0, -1, 1 << 32])
def test_invalid_chunk_size_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(UsageError, match=f"max_chunk_bytes is {size}"):
        Writer(str(tmp_path / "x"), max_chunk_bytes=size)


def test_records_beyond_the_limits_of_the_format_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordio, "UINT32_MAX", 100)
    monkeypatch.setattr(recordio_chunk, "UINT32_MAX", 100)
    with pytest.raises(DataError, match="record of 97 bytes is too large"):
        written(tmp_path / "x", [b"a" * 97], max_chunk_bytes=100)
    with pytest.raises(DataError, match="chunk of 160 bytes is too large"):
        written(tmp_path / "x", [b"abcd"] * 20, "none", max_chunk_bytes=100)

    assert list(tmp_path.iterdir()) == []


def test_snappy_frames_have_masked_checksums() -> None:
    # From the framing format: the value is rotated and a constant is added.
    crc = google_crc32c.value(b"Hello")

    assert masked_crc32c(b"Hello") == ((crc >> 15 | (crc & 0x7FFF) << 17) + 0xA282EAD8) % 2**32
    assert struct.pack("<I", masked_crc32c(b"Hello")) == bytes.fromhex("8aeeb9be")
