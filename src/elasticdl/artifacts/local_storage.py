"""Files on this machine that are either whole or not there.

Everything is written under a temporary name beside its target, flushed to the disk and renamed:

    .NAME.writing-PID-N  --rename-->  NAME          (a file, or a whole folder)
    NAME  <--exchange-->  .NAME.writing-PID-N       (a folder that replaces another)

So a process that dies at any moment leaves the old content, the new content, and at most a
temporary name, which the next holder of the folder removes. It knows nothing of what is in the
files. A disk that is full or may not be written becomes an `OutputError` with the way out.

Callers: `folder.py`, and `prediction/` for outputs that are no job folder.
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

from elasticdl import user_files
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.artifacts.lock import Lock

# EFBIG is what a limit on file sizes says (`ulimit -f`): to a user the same trouble.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_WRONG_KIND = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST})
_OCCUPIED = frozenset({errno.ENOTEMPTY, errno.EEXIST})

_TEMPORARY = re.compile(r"^\.(?P<name>.+)\.(?P<state>writing|replaced)-\d+-\d+$")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
# From anywhere: on a disk that machines share, process numbers are not unique.
_counter = itertools.count(secrets.randbelow(1 << 31))

_NFS = ".nfs"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def temporary_path(target: Path, state: str = "writing") -> Path:
    """Return a name beside `target` that nothing else of this process has."""
    return target.with_name(f".{target.name}.{state}-{os.getpid()}-{next(_counter)}")


def is_temporary(name: str, of: str | None = None) -> bool:
    """Return whether a file name is one of `temporary_path`, for any target or for one."""
    found = _TEMPORARY.match(name)
    return found is not None and of in {None, found["name"]}


@contextlib.contextmanager
def output_errors(path: Path | str) -> Iterator[None]:
    """Turn what the operating system says about an output into an `OutputError`.

    Args:
        path: What the message names.

    Raises:
        OutputError: The block raised an `OSError`; says what to do about it.
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
            f"{path}: there is no room left to write it ({reason}{_free_room(path)}). Free some "
            "room or name another place with --output; what was complete before is still there."
        )
    if error.errno in _NOT_ALLOWED:
        return (
            f"{path}: may not be written ({reason}). Give this user the right to write there, "
            "or name another place with --output."
        )
    if error.errno in _WRONG_KIND:
        named = f" ({error.filename})" if error.filename else ""
        return (
            f"{path}: a file stands where a folder is needed, or the other way round: "
            f"{reason}{named}. Name another place with --output, or move it out of the way."
        )
    return f"{path}: cannot be written: {reason}. Name another place with --output."


def _first_of(error: OSError) -> OSError:
    """Return the first error of those that `shutil.copytree` collects, which keep only texts."""
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return error
    text = str(error.args[0][0][-1])
    number = _ERRNO.match(text)
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(text)


def missing(where: str) -> OutputError:
    """Return the error for a file that should be in an output and is not."""
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


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those it lies in; their names are on the disk when it returns.

    Raises:
        OSError: One of them cannot be made.
    """
    missing_ones = []
    while not path.is_dir():
        missing_ones.append(path)
        path = path.parent
    for folder in reversed(missing_ones):
        folder.mkdir(exist_ok=True)
        # A folder that may be written to and not be read cannot be synced.
        with contextlib.suppress(PermissionError):
            sync(folder.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file, replacing what was there in one step.

    Raises:
        OSError: It cannot be written; what was there before still is.
    """
    make_folder(path.parent)
    aside = temporary_path(path)
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def publish(aside: Path, target: Path) -> None:
    """Make a finished file or folder appear under its name, in one step.

    Args:
        aside: What was written, on the same file system; it is gone afterwards.
        target: Where it appears. What is there is replaced as a whole.

    Raises:
        OSError: The target cannot be replaced; what was there before still is.
    """
    _sync_tree(aside)
    if not aside.is_dir():
        aside.replace(target)
    else:
        try:
            aside.rename(target)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            _replace_folder(aside, target)
    sync(target.parent)


def _sync_tree(path: Path) -> None:
    if path.is_dir():
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                if not Path(folder, name).is_symlink():
                    sync(Path(folder, name))
            sync(Path(folder))
    else:
        sync(path)


def _replace_folder(aside: Path, target: Path) -> None:
    if _exchange(aside, target):
        remove(aside)
        return
    # Two renames: a death between them leaves no `target`, which `remove_stale` mends.
    replaced = temporary_path(target, "replaced")
    target.rename(replaced)
    aside.rename(target)
    remove(replaced)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False where the system or the file system cannot."""
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
    # EPERM is also how some containers answer a system call they do not know.
    if number in {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}:
        return False
    raise OSError(number, os.strerror(number), str(second))


def remove(path: Path) -> None:
    """Remove a file or a folder if it is there; a folder disappears in one step."""
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
    """Leave what a client of NFS keeps as `.nfs...` until its last reader has closed it.

    It has a temporary name by now, and the next holder of the folder removes it.
    """
    error = raised[1]
    kept = isinstance(error, OSError) and error.errno in {errno.EBUSY, errno.ENOTEMPTY}
    # A folder that is not empty for another reason is one that somebody still writes into.
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if not kept or not any(file.name.startswith(_NFS) for file in folder.rglob("*")):
        raise error


def remove_stale(root: Path, of: str | None = None) -> None:
    """Remove what dead processes left half-written.

    Only the one who holds the place may call this: another writer's temporary names look the
    same.

    Args:
        root: A folder.
        of: Name in that folder of what was being written; None is anything anywhere in it.
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
    """The files of a folder on this machine; `RemoteStorage` has the same methods.

    Attributes:
        root: The folder.
        fence: What is checked before each write; None if any process may write.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fence: Lock | None = None

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
        """Return the path of a name."""
        return self.root / name if name else self.root

    def read_bytes(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            OutputError: There is none, or it cannot be read.
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
        """Make a file or folder appear under `name`, in one step; `aside` is gone afterwards."""
        target = self.path(name)
        with self._writing(name):
            make_folder(target.parent)
            if aside.parent != target.parent:
                aside = _bring_beside(aside, target)
            publish(aside, target)

    def names(self, name: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        try:
            names = [entry.name for entry in self.path(name).iterdir()]
            return sorted(name for name in names if not is_temporary(name))
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise OutputError(
                f"{self.where(name)}: may not be read ({error.strerror}). Give this user the right "
                "to read it, or name another folder."
            ) from error
        except OSError as error:
            raise OutputError(_explain(error, self.path(name))) from error

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a folder of this name."""
        return self.path(name).exists()

    def delete(self, name: str) -> None:
        """Remove a file or folder, if it is there, in one step."""
        with self._writing(name):
            remove(self.path(name))

    def fetch(self, name: str, destination: Path) -> None:
        """Copy a file or folder to a new path outside."""
        source = self.path(name)
        with output_errors(destination):
            if source.is_dir():
                shutil.copytree(source, destination)
            else:
                shutil.copy2(source, destination)

    def move(self, name: str, to: str) -> None:
        """Give a file or folder another name, replacing the file that has it."""
        with self._writing(to):
            make_folder(self.path(to).parent)
            self.path(name).replace(self.path(to))
            sync(self.path(to).parent)

    def remove_stale(self, of: str | None) -> None:
        """Remove what dead processes left half-written, of one name or anywhere."""
        with output_errors(self.root):
            remove_stale(self.root, of)


def _bring_beside(aside: Path, target: Path) -> Path:
    """Move to the target's own folder, so that the rename that follows is within one disk."""
    beside = temporary_path(target)
    try:
        shutil.move(aside, beside)
    except BaseException:
        # A move between disks is a copy: nothing half-copied may stay.
        if beside.exists():
            remove(beside)
        raise
    return beside
