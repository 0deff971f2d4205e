"""What a killed process left in the temporary directory goes; what a living one uses stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elasticdl import scratch

HOLD = (
    "import os, sys, time\n"
    "from elasticdl import scratch\n"
    "print(scratch.folder(), flush=True)\n"
    "if 'fork' in sys.argv and os.fork() == 0:\n"
    "    print(os.getpid(), flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """Return a function that starts a process with a folder of its own in `tmp_path`."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, *arguments], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_the_folder_of_a_killed_process_is_removed_by_the_next(holder) -> None:
    first, left = holder()
    (left / "content").write_text("x")
    kill(first)
    assert left.exists()

    holder()

    assert not left.exists()


def test_the_folder_of_a_live_process_is_kept(holder) -> None:
    _, used = holder()

    holder()

    assert used.exists()


def test_the_folder_is_kept_while_a_forked_process_lives(holder) -> None:
    first, used = holder("fork")
    child = int(first.stdout.readline())
    kill(first)
    try:
        holder()
        assert used.exists()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_folder_is_kept_while_a_subfolder_is_in_use(tmp_path) -> None:
    outer = tmp_path / "edl-outer"
    (outer / "inner").mkdir(parents=True)
    os.close(scratch.own(outer))
    inner = scratch.own(outer / "inner")

    scratch.remove_leftovers(tmp_path)
    assert outer.exists()

    os.close(inner)
    scratch.remove_leftovers(tmp_path)
    assert not outer.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give folders to others")
def test_the_folder_of_another_user_is_kept(tmp_path) -> None:
    theirs = tmp_path / "edl-theirs"
    theirs.mkdir()
    os.close(scratch.own(theirs))
    os.chown(theirs, 12345, 12345)

    scratch.remove_leftovers(tmp_path)

    assert theirs.exists()


def test_unrelated_folders_are_kept(tmp_path) -> None:
    (tmp_path / "edl-of-another-program").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "edl-link").symlink_to(tmp_path / "target")
    os.close(scratch.own(tmp_path / "target"))

    scratch.remove_leftovers(tmp_path)

    assert len(list(tmp_path.iterdir())) == 3


def test_a_process_that_ends_leaves_nothing(tmp_path, monkeypatch, run_python) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    run_python("from elasticdl import scratch; (scratch.folder() / 'x').touch()")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_written_to_during_removal_can_be_found_again(tmp_path):
    for _ in range(20):
        temporary = scratch.TemporaryFolder(str(tmp_path))
        writing = threading.Event()

        def write(folder: Path = temporary.path, writing: threading.Event = writing) -> None:
            number = 0
            while folder.exists() and number < 300:
                number += 1
                try:
                    (folder / str(number)).touch()
                except FileNotFoundError:
                    return
                writing.set()

        thread = threading.Thread(target=write)
        thread.start()
        writing.wait()
        temporary.cleanup()
        thread.join()

        assert not temporary.path.exists() or (temporary.path / "alive").exists()
    scratch.remove_leftovers(tmp_path)

    assert list(tmp_path.iterdir()) == []
