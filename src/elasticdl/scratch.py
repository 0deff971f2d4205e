"""Scratch folders in the temporary directory; those of killed processes are removed later.

    edl-XXXXXXXX/alive     locked (`flock`) by its process, and by those forked from it

The kernel drops the lock when the last of these processes ends, so a folder whose lock is free is
unused. An unused folder is removed when a process of the same user creates another scratch folder
in the same parent. Folders of other users are not removed, nor are folders whose lock is held or
that contain a folder whose lock is held.

Callers: all code that needs a temporary folder that outlives a block of code, or a path that is
short enough for a socket.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path

_ALIVE = "alive"
# More than a file system stores outside of its blocks.
_PROBE_BYTES = 2**16
# The second one is a fork server's, on a cluster's machines.
_OURS = ("edl-*", "elasticdl-*")

_lock = threading.Lock()
_folder: Path | None = None


def _renew_lock() -> None:
    # A thread that does not exist in the child may have held it.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def folder() -> Path:
    """Return this process's scratch folder, created at the first call and removed at exit.

    A forked child uses its parent's folder.

    Raises:
        OSError: The folder cannot be created.
    """
    global _folder
    with _lock:
        if _folder is None or not _folder.is_dir():
            _folder, _ = _made(Path(tempfile.gettempdir()))
            atexit.register(_remove, _folder, os.getpid())
        return _folder


def _remove(made: Path, maker: int) -> None:
    if os.getpid() == maker:
        _remove_tree(made)


def _remove_tree(folder: Path) -> None:
    """Remove a folder; if that fails, keep its `alive` file so that the next run finds it.

    It can fail because another thread still writes into the folder. The `alive` file is removed
    last, because this process may be killed before all other files are removed.
    """
    with contextlib.suppress(OSError):
        for child in folder.iterdir():
            if child.name == _ALIVE:
                continue
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink(missing_ok=True)
    mark = folder / _ALIVE
    with contextlib.suppress(OSError):
        mark.unlink(missing_ok=True)
        try:
            folder.rmdir()
        except OSError:
            mark.touch(mode=0o600)


class TemporaryFolder:
    """A new temporary folder with a short path; a `with` statement removes it at the end.

    Attributes:
        path: Path of the folder.

    Args:
        parent: Folder to create it in; None is the machine's temporary directory.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(self, parent: str | None = None) -> None:
        self.path, self._descriptor = _made(Path(parent or tempfile.gettempdir()))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder; calling it twice is harmless."""
        if self._descriptor >= 0:
            _remove_tree(self.path)
            os.close(self._descriptor)
            self._descriptor = -1


def _made(parent: Path) -> tuple[Path, int]:
    remove_leftovers(parent)
    made = Path(tempfile.mkdtemp(prefix="edl-", dir=parent))
    return made, own(made)


def has_room(folder: Path) -> bool:
    """Return whether the disk of a folder has free space, by writing a small file.

    After another program has failed, this shows whether a full disk may be the cause.
    """
    probe = folder / f".room-{os.getpid()}-{threading.get_ident()}"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError as error:
        return error.errno not in {errno.ENOSPC, errno.EDQUOT}
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return True


def no_room(folder: Path, where: str = "") -> str:
    """Return the error message for a full disk, for when `has_room` is false.

    Args:
        folder: Folder of the temporary files.
        where: The machine that has the disk, such as " on node3"; empty for the user's own.
    """
    disk = folder
    while disk != disk.parent and disk.parent.stat().st_dev == disk.stat().st_dev:
        disk = disk.parent
    return (
        f"{folder}: the disk at {disk}{where} has no room for temporary files. Free some "
        "space, or set TMPDIR to a folder on another disk. The same command resumes from the "
        "newest checkpoint."
    )


def own(folder: Path) -> int:
    """Mark a folder as used by this process and its forked children, by a lock on a file in it.

    Returns:
        An open file descriptor that holds the lock; forked children inherit it. The folder counts
        as unused when all of these processes have closed it or ended.

    Raises:
        OSError: The folder cannot be written.
    """
    # Locked before it gets its final name: a free lock means that its process is dead.
    aside = folder / f".{_ALIVE}-{os.getpid()}"
    descriptor = os.open(aside, os.O_CREAT | os.O_RDWR, 0o600)
    # Without support for locks, no process can take one, so the folder is never removed.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    aside.replace(folder / _ALIVE)
    return descriptor


def remove_leftovers(parent: Path | None = None) -> None:
    """Remove folders of this user's killed processes; folders that cannot be removed stay.

    Args:
        parent: Folder that contains them; None is the machine's temporary directory.
    """
    parent = parent or Path(tempfile.gettempdir())
    for pattern in _OURS:
        for left in parent.glob(pattern):
            with contextlib.suppress(OSError):
                if _is_left(left) and not any(_is_held(inner) for inner in left.glob("*/")):
                    _remove_tree(left)


def _is_left(folder: Path) -> bool:
    """Return whether a folder was left behind by a dead process of this user."""
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        return False
    return (folder / _ALIVE).exists() and not _is_held(folder)


def _is_held(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _ALIVE, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
