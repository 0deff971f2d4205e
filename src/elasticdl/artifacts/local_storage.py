"""Atomic files on this machine: each file or folder is either complete or absent.

Everything is written under a temporary name beside its target, flushed to the disk and renamed:

    .NAME.writing-PID-N  --rename-->  NAME          (a file, or a whole folder)
    NAME  <--exchange-->  .NAME.writing-PID-N       (a folder that replaces another)

So a process that dies at any moment leaves either the old or the new content, and at most a
temporary name, which the next holder of the folder removes. The content of the files is not
interpreted. A full disk or a missing permission becomes an `OutputError` with the remedy.

Callers: `folder.py`, and `prediction/` for outputs that are not job folders.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl import durable, user_files
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.artifacts.fence import Fence

# EFBIG is the error for a limit on file sizes (`ulimit -f`): for the user the same problem.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_WRONG_KIND = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST})
_OCCUPIED = frozenset({errno.ENOTEMPTY, errno.EEXIST})

_TEMPORARY = re.compile(r"^\.(?P<name>.+)\.(?P<state>writing|replaced)-\d+-\d+$")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
# A random start: on a disk that machines share, process ids are not unique.
_counter = itertools.count(secrets.randbelow(1 << 31))

_NFS = ".nfs"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def temporary_path(target: Path, state: str = "writing") -> Path:
    """Return an unused hidden path beside `target`, for new content or for content to be removed.

    Args:
        target: The final path.
        state: Word in the hidden name, which decides what happens to the content after a crash:
            "writing" means discard it, "replaced" means restore it.
    """
    return target.with_name(f".{target.name}.{state}-{os.getpid()}-{next(_counter)}")


def is_temporary(name: str, of: str | None = None) -> bool:
    """Return whether a file name has the form of those that `temporary_path` makes.

    Files with such names are not listed as content, and are removed after a crash.

    Args:
        name: The file name.
        of: Name of the target that the temporary name must be for. None: any target.
    """
    found = _TEMPORARY.match(name)
    return found is not None and of in {None, found["name"]}


@contextlib.contextmanager
def output_errors(path: Path | str) -> Iterator[None]:
    """Context manager that converts `OSError`s about an output into `OutputError`s.

    Args:
        path: The path in the message.

    Raises:
        OutputError: The block raised an `OSError`; the message says what to do about it.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(_explain(error, path)) from error


def _explain(error: OSError, path: Path | str) -> str:
    error = _first_of(error)
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return (
            f"{path}: no space left to write it ({reason}{_free_room(path)}). Free some space or "
            "use another --output; everything that was complete before is kept."
        )
    if error.errno in _NOT_ALLOWED:
        return (
            f"{path}: permission denied to write ({reason}). Give this user permission to write "
            "there, or use another --output."
        )
    if error.errno in _WRONG_KIND:
        found = "" if error.filename in (None, str(path)) else f" ({error.filename})"
        what = "a folder where a file" if error.errno == errno.EISDIR else "a file where a folder"
        return f"{path}: found {what} is needed{found}. Use another --output."
    return f"{path}: cannot be written: {reason}. Use another --output."


def _first_of(error: OSError) -> OSError:
    """Return the first of the errors that `shutil.copytree` collected; other errors unchanged.

    The collection has no `errno`, by which `output_errors` chooses the remedy to suggest.
    """
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return error
    text = str(error.args[0][0][-1])
    number = _ERRNO.match(text)
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(text)


def missing(where: str) -> OutputError:
    """Build the error for a file that is missing from an output."""
    return OutputError(
        f"{where}: there is no such file. Check that its folder is the output of a finished run."
    )


def _free_room(path: Path | str) -> str:
    place = Path(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return f", {shutil.disk_usage(place).free / 1e6:.1f} MB free"
    except OSError:
        return ""


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and sync their names to the disk.

    Raises:
        OSError: One of the folders cannot be created.
    """
    missing_ones = []
    while not path.is_dir():
        missing_ones.append(path)
        path = path.parent
    for folder in reversed(missing_ones):
        folder.mkdir(exist_ok=True)
        # A folder that may be written but not read cannot be synced.
        with contextlib.suppress(PermissionError):
            durable.sync(folder.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file, replacing an existing one in one step.

    Raises:
        OSError: The file cannot be written; the previous content is kept.
    """
    make_folder(path.parent)
    aside = temporary_path(path)
    try:
        aside.write_bytes(data)
        durable.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def publish(aside: Path, target: Path) -> None:
    """Atomically move a finished file or folder to its final name.

    Args:
        aside: The finished file or folder, on the same file system; it is gone afterwards.
        target: Its final path. Existing content is replaced as a whole.

    Raises:
        OSError: The target cannot be replaced; the previous content is kept.
    """
    if not aside.is_dir():
        durable.replace(aside, target)
        return
    _sync_tree(aside)
    try:
        aside.rename(target)
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        _replace_folder(aside, target)
    durable.sync(target.parent)


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            if not Path(folder, name).is_symlink():
                durable.sync(Path(folder, name))
        durable.sync(Path(folder))


def _replace_folder(aside: Path, target: Path) -> None:
    if _exchange(aside, target):
        remove(aside)
        return
    # Two renames: a crash between them leaves no `target`, which `remove_stale` repairs.
    replaced = temporary_path(target, "replaced")
    target.rename(replaced)
    aside.rename(target)
    remove(replaced)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically; return False if the system or the file system cannot do it."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    done = renameat2(
        _AT_FDCWD,
        os.fsencode(first),
        _AT_FDCWD,
        os.fsencode(second),
        ctypes.c_uint(_RENAME_EXCHANGE),
    )
    if done == 0:
        return True
    number = ctypes.get_errno()
    # Some containers answer EPERM to an unknown system call.
    if number in {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}:
        return False
    raise OSError(number, os.strerror(number), str(second))


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists; a folder disappears in one step."""
    if path.is_dir() and not path.is_symlink():
        if not is_temporary(path.name):
            doomed = temporary_path(path)
            path.rename(doomed)
            path = doomed
        shutil.rmtree(path, onerror=_kept_for_a_reader)
    else:
        path.unlink(missing_ok=True)


def _kept_for_a_reader(
    _function: object, path: str, raised: tuple[type[BaseException], BaseException, object]
) -> None:
    """Error callback of `shutil.rmtree`: ignore errors about `.nfs...` files, raise all others.

    NFS keeps a deleted file under such a name until its last reader closes it, so that its folder
    cannot be removed yet. The folder already has a temporary name, and the next process that locks
    the output removes it.
    """
    error = raised[1]
    kept = isinstance(error, OSError) and error.errno in {errno.EBUSY, errno.ENOTEMPTY}
    # If the folder is not empty for another reason, another process is still writing to it.
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if not kept or not any(file.name.startswith(_NFS) for file in folder.rglob("*")):
        raise error


def remove_stale(root: Path, of: str | None = None) -> None:
    """Remove half-written files of dead processes.

    Only the holder of the folder's lock may call this, because the files of a process that is still
    writing have the same form of name.

    Args:
        root: A folder.
        of: Name in that folder whose half-written versions are removed; None means all names.
    """
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            if is_temporary(name, of):
                _remove_stale(Path(folder, name))
        folders[:] = [] if of is not None else [name for name in folders if not is_temporary(name)]


def _remove_stale(path: Path) -> None:
    found = _TEMPORARY.match(path.name)
    target = path.with_name(found["name"]) if found else path
    if found and found["state"] == "replaced" and not target.exists():
        path.rename(target)
    else:
        remove(path)


class LocalStorage:
    """Storage for a folder on this machine; `RemoteStorage` has the same methods.

    Attributes:
        root: The folder.
        fence: A lock that is checked before each write; None if any process may write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fence: Fence | None = None

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        with output_errors(self.path(name)):
            if self.fence is not None:
                self.fence.check()
            yield

    def where(self, name: str) -> str:
        """Return the path of a name, for messages."""
        return str(self.path(name))

    def path(self, name: str) -> Path:
        """Return the local path of a file or folder, given its name in the folder."""
        return self.root / name if name else self.root

    def read_bytes(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            OutputError: The file does not exist, or cannot be read.
        """
        try:
            return user_files.read_bytes(self.path(name))
        except FileNotFoundError as error:
            raise missing(self.where(name)) from error
        except OSError as error:
            raise OutputError(f"{self.where(name)}: cannot be read: {error.strerror}.") from error

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a whole file, in one step."""
        with self._writing(name):
            write_atomically(self.path(name), data)

    def new_staging(self, name: str) -> Path:
        """Return a new empty folder that `publish` can rename to `name`."""
        with output_errors(self.path(name)):
            staging = temporary_path(self.path(name))
            make_folder(staging.parent)
            staging.mkdir()
            return staging

    def publish(self, aside: Path, name: str) -> None:
        """Move the file or folder `aside` to `name`, in one step."""
        target = self.path(name)
        with self._writing(name):
            make_folder(target.parent)
            if aside.parent != target.parent:
                aside = _bring_beside(aside, target)
            publish(aside, target)

    def names(self, name: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no such folder."""
        try:
            names = [entry.name for entry in self.path(name).iterdir()]
            return sorted(name for name in names if not is_temporary(name))
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise OutputError(
                f"{self.where(name)}: permission denied to read ({error.strerror}). Give this user "
                "permission to read it, or use another folder."
            ) from error
        except OSError as error:
            raise OutputError(_explain(error, self.path(name))) from error

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a folder of this name."""
        return self.path(name).exists()

    def delete(self, name: str) -> None:
        """Remove a file or folder, if it exists, in one step."""
        with self._writing(name):
            remove(self.path(name))

    def fetch(self, name: str, destination: Path) -> None:
        """Copy a file or folder to a new path outside the folder."""
        source = self.path(name)
        with output_errors(destination):
            if source.is_dir():
                shutil.copytree(source, destination)
            else:
                shutil.copy2(source, destination)

    def move(self, name: str, to: str) -> None:
        """Rename a file or folder, replacing the file that has the new name."""
        with self._writing(to):
            make_folder(self.path(to).parent)
            self.path(name).replace(self.path(to))
            durable.sync(self.path(to).parent)

    def remove_stale(self, of: str | None) -> None:
        """Remove what dead processes left half-written of the file `of`; None means any file."""
        with output_errors(self.root):
            remove_stale(self.root, of)


def _bring_beside(aside: Path, target: Path) -> Path:
    """Move a file or folder to a temporary name in the target's folder; return its new path.

    A file or folder from another disk is copied. This is needed because `publish` can only rename
    within one file system.

    Args:
        aside: The file or folder.
        target: The path to which it will be renamed.
    """
    beside = temporary_path(target)
    try:
        shutil.move(aside, beside)
    except BaseException:
        # A move between disks is a copy: no partial copy may stay.
        if beside.exists():
            remove(beside)
        raise
    return beside
