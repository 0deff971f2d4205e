"""Only regular files are opened, and opening never waits."""

import os
import socket

import pytest

from elasticdl import user_files


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


@pytest.mark.timeout(10)
def test_a_pipe_without_a_writer_is_refused_immediately(fifo):
    with pytest.raises(OSError, match="it is a pipe; expected a regular file"):
        user_files.read_bytes(fifo)


def test_a_link_to_a_device_counts_as_a_device(tmp_path):
    (tmp_path / "link").symlink_to("/dev/zero")

    assert user_files.special_kind(tmp_path / "link") == "a device"


def test_a_socket_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="it is a socket"):
            user_files.open_regular(tmp_path / "s")


def test_a_text_is_read_up_to_a_limit(tmp_path):
    (tmp_path / "text").write_bytes(b"12345")

    assert user_files.read_bytes(tmp_path / "text", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        user_files.read_bytes(tmp_path / "text", 4)


def test_a_missing_file_is_not_a_special_file(tmp_path):
    assert user_files.special_kind(tmp_path / "nothing") is None
    with pytest.raises(FileNotFoundError):
        user_files.open_regular(tmp_path / "nothing")


def test_a_signal_while_opening_a_file_is_not_lost(tmp_path, run_python):
    """Its exception can arrive at any instruction, even before the open file is assigned."""
    (tmp_path / "file").touch()

    done = run_python(
        "import random, signal\n"
        "from elasticdl import user_files\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "for _ in range(1000):\n"
        "    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 6e-5))\n"
        "        while True:\n"
        f"            user_files.read_bytes({str(tmp_path / 'file')!r})\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
        "print('answered')\n"
    )

    assert done.stdout == "answered\n"
