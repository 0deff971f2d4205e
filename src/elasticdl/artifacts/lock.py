"""One process at a time: a lock that says who holds it.

On this machine it is `flock` on a file that names its holder: the system drops it when the
holder dies, however that happens, and the file goes when it is released. On an object store
(or a network disk without `flock`) there is no such thing: there the file alone is the lock, a
dead holder is recognised only on the machine it ran on, and two processes that start in the same
instant are not kept apart. What is protected by it is not known here.

Callers: `claim.py` for job folders, `prediction/writers.py` for outputs that are none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.artifacts.local_storage import output_errors
from elasticdl.errors import OutputBusyError, OutputError

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder

_NO_FLOCK = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_held_descriptors: set[int] = set()


def _drop_inherited_locks() -> None:
    # A forked child shares the lock. One that outlives its killed parent would keep the output
    # busy with nobody working on it.
    for descriptor in _held_descriptors:
        os.close(descriptor)
    _held_descriptors.clear()


os.register_at_fork(after_in_child=_drop_inherited_locks)


class Lock(Protocol):
    """A hold on something, until it is released."""

    def release(self) -> None:
        """Let others hold it; doing it twice does no harm."""
        ...


def hold(folder: OutputFolder, name: str, subject: str = "") -> Lock:
    """Take a lock, without waiting for it.

    Args:
        folder: Where the lock's file lies; it is made if it is not there.
        name: Name of the file.
        subject: What a message says is being worked on; empty for the folder.

    Raises:
        OutputBusyError: Another process holds it; names its process id and host.
        OutputError: The file cannot be written.
    """
    subject = subject or folder.uri
    path = folder.local_path(name)
    if path is None:
        return _NamedLock(folder, name, subject)
    with output_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _SystemLock(path, subject)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return _NamedLock(folder, name, subject)


def is_held(folder: OutputFolder, name: str) -> bool:
    """Return whether somebody alive holds a lock; asking disturbs nobody.

    Of a holder on another machine it is not known whether he lives: he is taken to.
    """
    if not folder.exists(name):
        return False
    try:
        return not _is_dead(_parse_holder(folder.read_bytes(name)))
    except OutputError:
        # It was released between the two questions.
        return False


class _SystemLock:
    """`flock` on a file that says who holds it and disappears with the hold."""

    def __init__(self, path: Path, subject: str) -> None:
        self._path = path
        self._descriptor: int | None = _locked_descriptor(path, subject)
        _held_descriptors.add(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(_this_process()).encode(), 0)

    def release(self) -> None:
        if self._descriptor is None:
            return
        # Unlinked while held: who waits for it finds that it locked a file without a name.
        with contextlib.suppress(OSError):
            self._path.unlink()
        _held_descriptors.discard(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None


def _locked_descriptor(path: Path, subject: str) -> int:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BlockingIOError as error:
            holder = _parse_holder(os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            raise OutputBusyError(
                f"{subject}: {_named(holder)} is working on it. Wait until it is done, end it, or "
                "name another --output."
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


class _NamedLock:
    """A file that names its holder, for places that have no locks."""

    def __init__(self, folder: OutputFolder, name: str, subject: str) -> None:
        self._folder = folder
        self._name = name
        self._token = uuid.uuid4().hex
        if folder.exists(name):
            holder = _parse_holder(folder.read_bytes(name))
            if not _is_dead(holder):
                raise OutputBusyError(
                    f"{subject}: {_named(holder)} is working on it. Wait until it is done, end "
                    "it, or name another --output. If that process is gone, delete "
                    f"{folder.where(name)}."
                )
        me = {**_this_process(), "token": self._token}
        folder.write_bytes(name, json.dumps(me).encode())

    def release(self) -> None:
        # The output is complete by now: a lock that cannot be removed must not fail the run.
        with contextlib.suppress(OutputError):
            if _parse_holder(self._folder.read_bytes(self._name)).get("token") == self._token:
                self._folder.delete(self._name)


def _this_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "claimed": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "started": start_of(os.getpid()),
    }


def start_of(pid: int) -> str | None:
    """Return when a process of this machine started, in its kernel's ticks.

    None if it is gone (one whose parent has not asked for its end yet counts as gone), and where
    the system does not say.
    """
    try:
        # The name in brackets may hold spaces and brackets of its own.
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return None


def _parse_holder(text: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _named(holder: dict[str, Any]) -> str:
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on {holder.get('host')} (since {holder.get('claimed')})"


def _is_dead(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # A number that was given out again is another process.
    return holder.get("started") != start_of(pid)
