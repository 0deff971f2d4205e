"""Files that are there completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from elasticdl.data import atomic_file
from elasticdl.data.atomic_file import AtomicFile
from elasticdl.errors import OutputError, UsageError


def names_in(folder: str) -> list[str]:
    system, path = fsspec.core.url_to_fs(folder)
    return [found.rpartition("/")[2] for found in system.find(path)]


@pytest.fixture(params=["plain path", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "plain path" else f"{request.param}://{tmp_path}"


def content_of(uri: str) -> bytes:
    with fsspec.open(uri, "rb") as file:
        return file.read()


def test_file_appears_when_it_is_published(folder: str) -> None:
    file = AtomicFile(f"{folder}/x")
    file.write(b"first,")
    file.write(b"second")
    assert "x" not in names_in(folder)

    file.publish()

    assert names_in(folder) == ["x"]
    assert content_of(f"{folder}/x") == b"first,second"


def test_content_is_synced_before_the_file_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AtomicFile(str(tmp_path / "x"))
    file.write(b"complete")
    seen = []

    def fsync(descriptor: int) -> None:
        seen.append(((tmp_path / "x").exists(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)

    file.publish()

    assert seen[0] == (False, len(b"complete"))


def test_publishing_replaces_the_previous_file(folder: str) -> None:
    for content in (b"before", b"after"):
        file = AtomicFile(f"{folder}/x")
        file.write(content)
        file.publish()

    assert content_of(f"{folder}/x") == b"after"


def test_discarded_file_leaves_no_trace(folder: str) -> None:
    file = AtomicFile(f"{folder}/x")
    file.write(b"a")

    file.discard()
    file.discard()

    assert names_in(folder) == []


def test_discarded_file_cannot_be_published(folder: str) -> None:
    file = AtomicFile(f"{folder}/x")
    file.discard()

    with pytest.raises(OutputError, match="discarded already"):
        file.publish()


def test_temporary_file_has_another_extension(tmp_path: Path) -> None:
    file = AtomicFile(str(tmp_path / "x.recordio"))

    (name,) = [path.name for path in tmp_path.iterdir()]
    file.discard()

    assert name.startswith(".x.recordio.")
    assert name.endswith(".tmp")


def test_two_writers_of_one_file_do_not_interfere(tmp_path: Path) -> None:
    first, second = AtomicFile(str(tmp_path / "x")), AtomicFile(str(tmp_path / "x"))
    first.write(b"first")
    second.write(b"second")

    second.publish()
    first.publish()

    assert (tmp_path / "x").read_bytes() == b"first"


def test_mode_of_the_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        AtomicFile(str(tmp_path / "x")).publish()
    finally:
        os.umask(before)

    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_failed_write_names_the_file_and_leaves_no_trace(tmp_path: Path) -> None:
    # Every write to this device fails as on a full disk.
    file = AtomicFile(str(tmp_path / "x"))
    os.dup2(os.open("/dev/full", os.O_WRONLY), file._aside._file.fileno())

    with pytest.raises(OutputError, match=r"/x cannot be written: No space left on device"):
        file.write(bytes(2 * atomic_file._BUFFER_BYTES))

    assert list(tmp_path.iterdir()) == []


def test_folder_of_that_name_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    file = AtomicFile(str(tmp_path / "x"))

    with pytest.raises(OutputError, match="Is a directory"):
        file.publish()

    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_unknown_protocol_is_named() -> None:
    with pytest.raises(UsageError, match="nonsense://x cannot be opened"):
        AtomicFile("nonsense://x")


def test_publishing_syncs_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AtomicFile(str(tmp_path / "x"))
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(
            (str(Path(f"/proc/self/fd/{descriptor}").readlink()), (tmp_path / "x").exists())
        )

    monkeypatch.setattr(os, "fsync", fsync)

    file.publish()

    assert (str(tmp_path), True) in synced
