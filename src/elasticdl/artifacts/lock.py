"""Locks: exclusive access for one process, with a file that names the holder.

On this machine a lock is `flock` on a file that names its holder: the system drops the lock when
the holder dies, however that happens, and the file is removed on release. On NFS, the server holds
the lock and does the same. But if NFS is mounted with `nolock` or `local_lock`, the lock excludes
only processes of the same machine, which cannot be detected here. On an object store, or a network
disk without `flock`, the lock is a lease (`output_lease.py`).

Callers: `claim.py` for job folders, `prediction/writers.py` for outputs that are not job folders.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from elasticdl.artifacts.fence import Fence
from elasticdl.artifacts.holder import is_dead, name_of, parse_holder, start_of, this_process
from elasticdl.artifacts.local_storage import make_folder, output_errors
from elasticdl.artifacts.output_lease import Lease, ignore_note
from elasticdl.errors import OutputBusyError, OutputError, OutputLostError

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.artifacts.output_lease import Note

__all__ = ["Lock", "hold", "is_held", "start_of"]

_NO_FLOCK = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_held_descriptors: set[int] = set()


def _drop_inherited_locks() -> None:
    # A forked child shares the lock. A child that outlives its killed parent would keep the
    # output busy while no process works on it.
    for descriptor in _held_descriptors:
        os.close(descriptor)
    _held_descriptors.clear()


os.register_at_fork(after_in_child=_drop_inherited_locks)


class Lock(Fence, Protocol):
    """An exclusive lock that this process holds until `release`, or until it is lost."""

    def release(self) -> None:
        """Release the lock, so that others can take it; calling it twice is harmless."""
        ...


def hold(
    folder: OutputFolder,
    name: str,
    subject: str = "",
    note: Note = ignore_note,
    alternative: str = "use another --output",
) -> Lock:
    """Acquire a lock, without waiting for a holder that is alive.

    Waits only if the lock is a lease (`output_lease.py`) whose holder is on another machine: this
    shows whether the holder is alive.

    Args:
        folder: The folder of the lock's file; it is created if it does not exist.
        name: Name of the lock's file in the folder.
        subject: Description of what the lock protects, for messages; empty for the folder.
        note: Called with a notice for the user if this function has to wait until the lease of a
            holder on another machine may have expired.
        alternative: Advice for a user who does not want to wait, as part of a sentence.

    Raises:
        OutputBusyError: Another process holds it; the message names its process id and host.
        OutputError: The file cannot be written.
    """
    subject = subject or folder.uri
    path = folder.local_path(name)
    if path is None:
        with folder.errors(name):
            return Lease(folder.versioned(name), folder.where(name), subject, note, alternative)
    with output_errors(path.parent):
        make_folder(path.parent)
        try:
            return _SystemLock(path, subject, alternative)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return Lease(folder.versioned(name), str(path), subject, note, alternative)


def is_held(folder: OutputFolder, name: str) -> bool:
    """Return whether a living process holds a lock, without affecting it.

    A holder on another machine cannot be checked: it is assumed to be alive.
    """
    if not folder.exists(name):
        return False
    try:
        holder = parse_holder(folder.read_bytes(name))
        return not holder.get("released") and not is_dead(holder)
    except OutputError:
        # It was released between the two checks.
        return False


class _SystemLock:
    """A lock by `flock` on a file that names its holder and is removed on release."""

    def __init__(self, path: Path, subject: str, alternative: str) -> None:
        self._path, self._subject = path, subject
        self._pid = os.getpid()
        self._descriptor: int | None = _locked_descriptor(path, subject, alternative)
        _held_descriptors.add(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(this_process()).encode(), 0)

    # The kernel's lock is lost only if the process ends or the file is replaced.
    checks_conditions = False

    def check(self) -> None:
        """Raise `OutputLostError` if the locked file was removed, renamed or replaced."""
        if self._descriptor is None or self._pid != os.getpid():
            return
        if self._is_there(self._descriptor):
            return
        raise OutputLostError(
            f"{self._subject}: it was removed, renamed or replaced while this process was using "
            "it, and another process may be using it now. This process stops writing there. Run "
            "the same command again to start from the beginning."
        )

    def release(self) -> None:
        """Remove the file and release the lock; calling it twice is harmless."""
        if self._descriptor is None:
            return
        # Unlinked while held: a waiting process detects that it has locked a file without a name.
        with contextlib.suppress(OSError):
            # If the folder was replaced, the lock in it belongs to another process.
            if self._is_there(self._descriptor):
                self._path.unlink()
        _held_descriptors.discard(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None

    def _is_there(self, descriptor: int) -> bool:
        """Return whether the locked file is still at its path, not replaced or removed."""
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        held = os.fstat(descriptor)
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def _locked_descriptor(path: Path, subject: str, alternative: str) -> int:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # After it was opened, its holder may have released it and another process created it.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
        except BlockingIOError as error:
            holder = parse_holder(os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            raise OutputBusyError(
                f"{subject}: {name_of(holder)} is using it. Wait until it is done, stop it, or "
                f"{alternative}."
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
