"""Compressed files read by position."""

from __future__ import annotations

import gzip
import pickle
import random
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import inflated_file
from elasticdl.data.inflated_file import InflatedFile
from elasticdl.data.stored_file import StoredFile, open_stored
from elasticdl.errors import CorruptDataError


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflated_file, "_BLOCK_BYTES", 64)


@pytest.fixture
def often_switching_threads() -> Iterator[None]:
    """Let threads take turns as often as they can, as if there were as many processors."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def stored(path: Path, content: bytes) -> StoredFile:
    path.write_bytes(content)
    return open_stored(str(path))


PLAIN = random.Random(0).randbytes(3000) + bytes(3000)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(PLAIN),
        zlib.compress(PLAIN),
        gzip.compress(PLAIN[:1000]) + gzip.compress(b"") + gzip.compress(PLAIN[1000:]),
    ],
    ids=["gzip", "zlib", "joined"],
)
@settings(max_examples=50, deadline=None)
@given(ranges=st.lists(st.tuples(st.integers(0, 6100), st.integers(0, 6100)), max_size=5))
def test_ranges_in_any_order_match_the_decompressed_data(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, ranges: list[tuple[int, int]]
) -> None:
    file = InflatedFile(stored(tmp_path_factory.mktemp("ranges") / "x", content))

    assert [file.read(start, stop) for start, stop in ranges] == [
        PLAIN[start:stop] for start, stop in ranges
    ]
    assert file.size_bytes == len(PLAIN)


def test_reading_near_the_end_again_skips_the_beginning(
    tmp_path: Path,
) -> None:
    content = gzip.compress(PLAIN)
    file = InflatedFile(stored(tmp_path / "x", content))
    assert file.size_bytes == len(PLAIN)
    # Whoever reads the front again will stumble.
    (tmp_path / "x").write_bytes(bytes(1024) + content[1024:])

    assert file.read(2500, 2510) == PLAIN[2500:2510]


def test_pickled_file_can_be_read_in_another_process(tmp_path: Path) -> None:
    file = InflatedFile(stored(tmp_path / "x", gzip.compress(PLAIN)))
    assert file.size_bytes == len(PLAIN)

    assert pickle.loads(pickle.dumps(file)).read(2500, 2510) == PLAIN[2500:2510]


def test_threads_read_different_places_concurrently(
    tmp_path: Path, often_switching_threads: None
) -> None:
    compressed = stored(tmp_path / "x", gzip.compress(PLAIN))

    for _ in range(20):
        file = InflatedFile(compressed)
        together = threading.Barrier(4, timeout=30)

        def wrong(
            seed: int, file: InflatedFile = file, together: threading.Barrier = together
        ) -> list[int]:
            starts = random.Random(seed).choices(range(6000), k=30)
            together.wait()
            return [at for at in starts if file.read(at, at + 100) != PLAIN[at : at + 100]]

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(wrong, range(4))) == [[], [], [], []]


def test_damage_is_reported_with_its_block(tmp_path: Path) -> None:
    content = bytearray(zlib.compress(PLAIN))
    # The very last bytes are the checksum.
    content[-1] ^= 1
    file = InflatedFile(stored(tmp_path / "x", bytes(content)))

    with pytest.raises(CorruptDataError, match="compressed data in the 64 bytes") as caught:
        assert file.size_bytes

    assert caught.value.offset_bytes == (len(content) - 1) // 64 * 64


def test_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    file = InflatedFile(stored(tmp_path / "x", gzip.compress(PLAIN)[:-1]))

    with pytest.raises(CorruptDataError, match="found the end of the file"):
        file.read(5999, 6000)
