"""Bytes by position, from disks and through fsspec."""

from __future__ import annotations

import mmap
import pickle
import threading
from pathlib import Path

import fsspec
import pytest

from elasticdl.data.stored_file import StoredFile, filesystem, local_path, open_each, open_stored
from elasticdl.errors import DataError, MissingExtraError, NoDataError, UsageError


@pytest.fixture(params=["plain path", "file", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URI of a file that holds b"0123456789"."""
    name = f"{tmp_path}/x"
    uri = name if request.param == "plain path" else f"{request.param}://{name}"
    with fsspec.open(uri, "wb") as file:
        file.write(b"0123456789")
    return uri


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 10, b"0123456789"), (3, 5, b"34"), (4, 4, b""), (8, 20, b"89"), (12, 20, b"")],
)
def test_range_ends_at_the_end_of_the_file(
    uri: str, start: int, stop: int, expected: bytes
) -> None:
    file = open_stored(uri)

    assert file.size_bytes == 10
    assert file.read(start, stop) == expected


def test_reading_into_memory_returns_the_number_of_bytes(uri: str) -> None:
    memory = mmap.mmap(-1, 6)

    assert open_stored(uri).read_into(memory, 2, 4) == 4
    assert memory[:6] == b"2345\0\0"
    assert open_stored(uri).read_into(memory, 7, 6) == 3
    assert memory[:6] == b"78945\0"[:3] + b"5\0\0"


def test_file_can_be_sent_to_another_process(uri: str) -> None:
    assert pickle.loads(pickle.dumps(open_stored(uri))).read(0, 2) == b"01"


@pytest.mark.parametrize("protocol", ["", "file://", "memory://"])
def test_file_that_does_not_exist_is_named(tmp_path: Path, protocol: str) -> None:
    uri = f"{protocol}{tmp_path}/nowhere"

    with pytest.raises(NoDataError, match=f"{uri} cannot be read: there is no such file"):
        open_stored(uri)


def test_file_deleted_before_reading_is_named(uri: str) -> None:
    file = open_stored(uri)
    system, path = fsspec.core.url_to_fs(uri)
    system.rm_file(path)

    with pytest.raises(NoDataError, match="there is no such file"):
        file.read(0, 1)


def test_folder_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it is a folder; expected a file"):
        open_stored(str(tmp_path))


def test_unknown_protocol_is_named() -> None:
    with pytest.raises(UsageError, match=r"nonsense://x cannot be opened.*nonsense"):
        open_stored("nonsense://x")


def test_missing_object_store_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_installed(uri: str) -> None:
        raise ImportError(uri)

    monkeypatch.setattr("fsspec.core.url_to_fs", not_installed)

    with pytest.raises(MissingExtraError, match=r"pip install 'elasticdl\[gcs\]'"):
        filesystem("gs://bucket/x")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("a/b c", "a/b c"),
        ("file:///a", "/a"),
        ("s3://bucket/a", None),
        ("zip://a.csv::s3://bucket/b.zip", None),
    ],
)
def test_only_plain_paths_and_file_uris_are_local(uri: str, path: str | None) -> None:
    assert local_path(uri) == path


def test_remote_files_are_opened_concurrently_in_order() -> None:
    both_wait = threading.Barrier(2, timeout=30)

    def open_one(uri: str) -> StoredFile:
        both_wait.wait()
        return StoredFile(uri, 0)

    opened = open_each(["memory://b", "memory://a"], open_one)

    assert [file.uri for file in opened] == ["memory://b", "memory://a"]


def test_store_specific_error_is_translated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoCredentialsError(Exception):
        """As botocore has: no OSError."""

    def refuse(system: object, path: str) -> dict[str, object]:
        raise NoCredentialsError("Unable to locate credentials.")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.info", refuse)

    with pytest.raises(
        DataError, match=r"memory://x cannot be read: Unable to locate credentials\.$"
    ):
        open_stored("memory://x")
