"""Sees what a storm leaves on its machine: processes, temporary files, shared memory.

A storm has a temporary folder of its own, and a mark in its environment that all its processes
inherit. A process that has written its title over its environment is known by what it was started
with or has open.

Callers: `storm.py`.
"""

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path

import psutil

_MARK = "ELASTICDL_STORM_MARK"
_SHARED_MEMORY = Path("/dev/shm")
# PyTorch's cache of compiled code is one for all programs of a user.
_OF_OTHERS = ("torchinductor_",)
# The agents of a killed raylet try for a minute to tell a control store that is dead too.
_PATIENCE_S = 90.0


class Nest:
    """The temporary folder and the mark of a storm.

    Attributes:
        folder: The temporary folder; its path is short, since sockets lie in it.
        environment: What the storm's commands are to have in theirs.
    """

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
        self._mark = uuid.uuid4().hex
        self._shared_before = set(_SHARED_MEMORY.iterdir())
        self.environment = {_MARK: self._mark, "TMPDIR": str(self.folder)}

    def processes(self):
        """Return the living processes of the storm."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def files(self):
        """Return what lies in its temporary folder, and what nobody has open in shared memory."""
        own = [path for path in self.folder.iterdir() if not path.name.startswith(_OF_OTHERS)]
        new = {path for path in _SHARED_MEMORY.iterdir() if _is_of_this_user(path)}
        new -= self._shared_before
        return sorted([*own, *(new - _open_files() if new else ())])

    def assert_no_process_is_left(self):
        """Wait until none lives; a fork server stays for ten seconds after the last worker.

        Raises:
            AssertionError: One does.
        """
        until_s = time.monotonic() + _PATIENCE_S
        while processes := self.processes():
            left = [f"{each.pid} {_command_of(each)}" for each in processes]
            assert time.monotonic() < until_s, "\n".join(["Left behind:", *left])
            time.sleep(0.2)

    def assert_it_is_empty(self):
        """Wait until nothing is left, neither a process nor a file.

        Raises:
            AssertionError: Something is.
        """
        self.assert_no_process_is_left()
        until_s = time.monotonic() + _PATIENCE_S
        while files := self.files():
            inside = [f"{path}: {sorted(path.rglob('*'))[:5]}" for path in files]
            assert time.monotonic() < until_s, "\n".join(["Left behind:", *inside])
            time.sleep(0.2)

    def clear(self):
        """Kill and remove whatever is left."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_ours(self, process):
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            if process.environ().get(_MARK) == self._mark:
                return True
            folder = str(self.folder)
            return folder in " ".join(process.cmdline()) or any(
                str(path).startswith(folder) for path in _open_files(process.pid)
            )
        return False


def _is_of_this_user(path):
    with contextlib.suppress(OSError):
        return path.stat().st_uid == os.getuid()
    return False


def _open_files(pid=None):
    """Return the files that a process has open, or any process; sockets are none."""
    links = Path("/proc").glob(f"{pid or '[0-9]*'}/fd/*")
    mapped = [] if pid else Path("/proc").glob("[0-9]*/map_files/*")
    found = set()
    for link in (*links, *mapped):
        with contextlib.suppress(OSError):
            found.add(link.readlink())
    return found


def _command_of(process):
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "?"
