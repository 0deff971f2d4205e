"""Files and folders of an output: whole or not there, and never outside."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.artifacts import local_storage
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import MissingExtraError, OutputError, UsageError

NOBODY = 65534


def everything_in(path: Path) -> set[str]:
    return {str(entry.relative_to(path)) for entry in path.rglob("*")}


@contextlib.contextmanager
def as_nobody(mode: int) -> Iterator[Path]:
    """Make a folder with these permissions and be a user they hold for, also as root."""
    path = Path(tempfile.mkdtemp())
    path.chmod(mode)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield path
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(0o755)
        path.rmdir()


@pytest.fixture
def unwritable():
    """Return a folder this user may read and not write, also where tests run as root."""
    with as_nobody(0o555) as path:
        yield path


# --- Any folder -------------------------------------------------------------------------------


def test_written_bytes_are_read_back(folder) -> None:
    folder.write_bytes("reports/first.txt", b"well")

    assert folder.read_bytes("reports/first.txt") == b"well"


def test_writing_again_replaces_a_file(folder) -> None:
    folder.write_bytes("a", b"old")
    folder.write_bytes("a", b"new")

    assert (folder.read_bytes("a"), folder.list()) == (b"new", ["a"])


def test_creating_a_folder_object_creates_no_folder(folder) -> None:
    assert not folder.exists()
    assert folder.list() == []


def test_names_are_listed_in_order_one_level_deep(folder) -> None:
    for name in ("b", "a/c", "a/b"):
        folder.write_bytes(name, b"")

    assert (folder.list(), folder.list("a")) == (["a", "b"], ["b", "c"])


def test_a_published_folder_has_its_files_and_no_leftovers(folder, tmp_path) -> None:
    aside = tmp_path / "aside"
    (aside / "inner").mkdir(parents=True)
    (aside / "inner" / "x").write_bytes(b"1")
    (aside / "manifest.json").write_bytes(b"{}")

    folder.publish(aside, "result")

    assert folder.read_bytes("result/inner/x") == b"1"
    assert folder.list("result") == ["inner", "manifest.json"]
    assert not aside.exists()


def test_a_published_folder_replaces_another_completely(folder) -> None:
    with folder.staging("result") as path:
        (path / "old").write_bytes(b"")
        (path / "both").write_bytes(b"old")
    with folder.staging("result") as path:
        (path / "new").write_bytes(b"")
        (path / "both").write_bytes(b"new")

    assert folder.list("result") == ["both", "new"]
    assert folder.read_bytes("result/both") == b"new"
    assert folder.list() == ["result"]


def test_a_failed_staging_keeps_the_existing_folder(folder) -> None:
    with folder.staging("result") as path:
        (path / "a").write_bytes(b"old")

    with contextlib.suppress(KeyError), folder.staging("result") as path:
        (path / "a").write_bytes(b"new")
        raise KeyError

    assert folder.read_bytes("result/a") == b"old"
    assert folder.list() == ["result"]
    assert not path.exists()


def test_deleting_removes_files_and_folders_and_ignores_missing_ones(folder) -> None:
    folder.write_bytes("a", b"")
    folder.write_bytes("b/c", b"")

    for name in ("a", "b", "never"):
        folder.delete(name)

    assert (folder.list(), folder.exists("a"), folder.exists("b/c")) == ([], False, False)


def test_fetching_copies_a_folder_to_this_machine(folder, tmp_path) -> None:
    folder.write_bytes("zoo/inner/model.py", b"code")

    folder.fetch("zoo", tmp_path / "copy")

    assert (tmp_path / "copy" / "inner" / "model.py").read_bytes() == b"code"


def test_reading_a_missing_file_names_it(folder) -> None:
    with pytest.raises(OutputError, match=r"output/gone: there is no such file"):
        folder.read_bytes("gone")


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/../../b", "a\\b", "a\0b"])
def test_names_cannot_point_outside_the_folder(folder, name) -> None:
    with pytest.raises(OutputError, match="not a valid name inside"):
        folder.write_bytes(name, b"")
    with pytest.raises(OutputError, match="not a valid name inside"):
        folder.read_bytes(name)


def test_only_local_folders_have_local_paths(tmp_path) -> None:
    assert OutputFolder(f"file://{tmp_path}").local_path("a/b") == tmp_path / "a" / "b"
    assert OutputFolder("memory://x").local_path("a") is None


# --- On this machine --------------------------------------------------------------------------


def test_a_full_disk_is_an_output_error_and_keeps_the_old_file(
    local_folder, limited_room, tmp_path
) -> None:
    local_folder.write_bytes("a", b"old")

    with pytest.raises(OutputError, match=r"(?s)output/a: no space left.*--output"):
        local_folder.write_bytes("a", b"x" * 2000)

    assert local_folder.read_bytes("a") == b"old"
    assert everything_in(tmp_path) == {"output", "output/a"}


def test_an_output_without_write_permission_is_an_output_error(unwritable) -> None:
    with pytest.raises(OutputError, match=r"new/a: permission denied to write .*--output"):
        OutputFolder(unwritable / "new").write_bytes("a", b"")


def test_an_output_without_read_permission_is_reported() -> None:
    with (
        as_nobody(0o000) as path,
        pytest.raises(OutputError, match="permission denied to read .*to read it"),
    ):
        OutputFolder(path).list()


def test_a_file_in_place_of_the_folder_is_an_output_error(tmp_path) -> None:
    (tmp_path / "output").write_bytes(b"")

    with pytest.raises(OutputError, match="found a file where a folder is needed"):
        OutputFolder(tmp_path / "output").write_bytes("a", b"")


def test_publishing_a_folder_over_a_file_is_refused_and_keeps_the_file(local_folder) -> None:
    local_folder.write_bytes("result", b"precious")

    with pytest.raises(OutputError), local_folder.staging("result") as path:
        (path / "a").write_bytes(b"")

    assert local_folder.read_bytes("result") == b"precious"


def test_a_folder_is_replaced_atomically(local_folder) -> None:
    for name in ("result", "other"):
        with local_folder.staging(name) as path:
            (path / "a").write_bytes(b"")
    result = local_folder.local_path("result")
    if not local_storage._exchange(result, local_folder.local_path("other")):
        pytest.skip("this system cannot exchange two names")
    look = "import os, sys\nprint(flush=True)\nwhile os.path.exists(sys.argv[1]): pass"
    looker = subprocess.Popen([sys.executable, "-c", look, result], stdout=subprocess.PIPE)
    looker.stdout.readline()

    for _ in range(200):
        with local_folder.staging("result") as path:
            (path / "a").write_bytes(b"")

    is_still_looking = looker.poll() is None
    looker.kill()
    looker.communicate()
    assert is_still_looking


def test_a_folder_is_replaced_by_renames_without_an_atomic_exchange(
    local_folder, monkeypatch
) -> None:
    monkeypatch.setattr(local_storage.sys, "platform", "other")
    for content in (b"old", b"new"):
        with local_folder.staging("result") as path:
            (path / "a").write_bytes(content)

    assert local_folder.read_bytes("result/a") == b"new"
    assert everything_in(local_folder.local_path()) == {"result", "result/a"}


def test_a_replacement_interrupted_between_renames_is_repaired(local_folder) -> None:
    with local_folder.staging("result") as path:
        (path / "a").write_bytes(b"old")
    result = local_folder.local_path("result")
    result.rename(local_storage.temporary_path(result, "replaced"))

    local_folder.remove_stale()

    assert local_folder.read_bytes("result/a") == b"old"


def test_only_leftovers_are_removed(local_folder) -> None:
    local_folder.write_bytes("kept/.hidden.writing", b"")
    inner = local_folder.local_path("kept/file")
    local_storage.temporary_path(inner).write_bytes(b"")
    local_storage.temporary_path(inner).mkdir()

    local_folder.remove_stale()

    assert everything_in(local_folder.local_path()) == {"kept", "kept/.hidden.writing"}


def test_leftovers_are_not_listed(local_folder) -> None:
    local_folder.write_bytes("a", b"")
    local_storage.temporary_path(local_folder.local_path("b")).write_bytes(b"")

    assert local_folder.list() == ["a"]


def test_a_folder_from_another_disk_is_published(local_folder) -> None:
    shared_memory = Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK):
        pytest.skip("there is no second disk to write to")
    with tempfile.TemporaryDirectory(dir=shared_memory) as other:
        aside = Path(other, "aside")
        aside.mkdir()
        (aside / "a").write_bytes(b"1")
        local_folder.publish(aside, "result")

    assert local_folder.read_bytes("result/a") == b"1"
    assert everything_in(local_folder.local_path()) == {"result", "result/a"}


def test_a_full_disk_is_reported_with_the_free_space(tmp_path) -> None:
    with (
        pytest.raises(OutputError, match=r"No space left on device, \d+\.\d MB free"),
        local_storage.output_errors(tmp_path / "a"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_folder_copy_is_reported_in_one_sentence(tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    for name in ("a", "b"):
        (source / name).write_bytes(bytes(100_000))
        # What is written there finds no room.
        (target / name).symlink_to("/dev/full")

    with (
        pytest.raises(OutputError, match="no space left to write it") as raised,
        local_storage.output_errors(target),
    ):
        shutil.copytree(source, target, dirs_exist_ok=True)

    assert "[(" not in str(raised.value)
    assert "Errno" not in str(raised.value)


# --- On a store -------------------------------------------------------------------------------


def test_a_store_gets_the_manifest_last_before_old_files_are_deleted(monkeypatch) -> None:
    folder = OutputFolder("memory://order/output")
    with folder.staging("result") as path:
        (path / "old").write_bytes(b"")
    done = []
    system = type(folder._storage._fs)
    put, remove = system.put_file, system.rm_file
    monkeypatch.setattr(
        system, "put_file", lambda fs, a, b, **kw: (done.append(b), put(fs, a, b, **kw))
    )
    monkeypatch.setattr(system, "rm_file", lambda fs, a: (done.append(f"-{a}"), remove(fs, a)))

    with folder.staging("result") as path:
        for name in ("a", "manifest.json", "z"):
            (path / name).write_bytes(b"")

    assert [Path(name).name for name in done] == ["a", "z", "manifest.json", "old"]


def test_an_unknown_url_scheme_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        OutputFolder("nowhere://bucket/output")


def test_a_store_whose_package_is_missing_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    with pytest.raises(MissingExtraError, match=r"elasticdl\[gcs\]"):
        OutputFolder("gs://bucket/output")


def fsynced(monkeypatch) -> set[str]:
    """Return the paths that are synced from now on, as they are."""
    synced, fsync = set(), os.fsync

    def note(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return synced


def test_new_folders_are_synced_to_disk(tmp_path, monkeypatch) -> None:
    synced = fsynced(monkeypatch)
    folder = OutputFolder(tmp_path / "new" / "output")

    with folder.staging("checkpoints/step-0000000001") as path:
        (path / "manifest.json").write_bytes(b"")

    # Each holds the name of the next.
    for parent in (tmp_path, tmp_path / "new", tmp_path / "new/output"):
        assert str(parent) in synced
    assert str(tmp_path / "new/output/checkpoints") in synced


def test_a_file_in_a_new_folder_is_synced_with_its_parents(tmp_path, monkeypatch) -> None:
    synced = fsynced(monkeypatch)

    OutputFolder(tmp_path / "output").write_bytes("reports/first.txt", b"")

    assert {str(tmp_path), str(tmp_path / "output"), str(tmp_path / "output/reports")} <= synced


def test_a_file_that_nfs_keeps_for_a_reader_does_not_fail_a_job(local_folder, monkeypatch) -> None:
    local_folder.write_bytes("checkpoints/step-0000000001/.nfs0001", b"")
    local_folder.write_bytes("checkpoints/step-0000000001/manifest.json", b"")
    unlink = os.unlink

    def busy(path, **options) -> None:
        # So answers a client of NFS while somebody reads what was deleted.
        if ".nfs" in os.fspath(path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", busy)

    local_folder.delete("checkpoints/step-0000000001")

    assert local_folder.list("checkpoints") == []
    # The next holder tries again, and may fail again.
    local_folder.remove_stale()
    monkeypatch.undo()
    local_folder.remove_stale()
    assert list(local_folder.local_path("checkpoints").iterdir()) == []
