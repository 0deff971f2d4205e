"""Opens files that the user names, and rejects everything that is not a regular file.

Opening a named pipe without a writer blocks, a device such as `/dev/zero` never ends, and both look
like files until they are read. So every file that a user names is opened here, or checked here
before a library opens it.

The errors are `OSError`s whose `strerror` is a sentence for the user; the callers convert them into
the error that fits (a wrong flag, a wrong model file, unusable data).

Callers: all code that opens a file by a user's path.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_TEXT_BYTES = 64 * 2**20
"""Largest text file that is read whole: a config, a spec, a model's code."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def special_kind(path: Path | str) -> str | None:
    """Return the kind of a path that is not a regular file; None if it is one or does not exist.

    Links are followed.

    Example:
        >>> special_kind("/dev/zero"), special_kind("/")
        ('a device', 'a folder')
    """
    try:
        return _kind(Path(path).stat().st_mode)
    except OSError:
        return None


def check_regular(path: Path | str) -> None:
    """Raise `OSError` if a path is not a regular file.

    Raises:
        OSError: The path is a folder, a pipe, a socket or a device; `strerror` says which. Or its
            status cannot be read: it does not exist, or this user may not enter a folder above it.
    """
    _check(Path(path).stat().st_mode, path)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading; never blocks.

    Raises:
        OSError: The file does not exist, may not be read, or is not a regular file.
    """
    # Before opening: opening alone has an effect on some devices, and fails for a socket.
    check_regular(path)
    # A pipe that has replaced the file in the meantime does not block; it is rejected as well.
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller's
    try:
        _check(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def read_bytes(path: Path | str, most_bytes: int | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        most_bytes: Largest size that is read; None for no limit.

    Raises:
        OSError: The file does not exist, may not be read, is not a regular file, or is too large.
    """
    with open_regular(path) as file:
        # A file of /proc has a size of 0 but some content, so checking the size is not enough.
        data = file.read(-1 if most_bytes is None else most_bytes + 1)
        if most_bytes is not None and len(data) > most_bytes:
            raise OSError(
                errno.EFBIG,
                f"it has more than {most_bytes:,} bytes; expected a short text",
                str(path),
            )
        return data


def read_text(path: Path | str) -> str:
    """Return the content of a text file in UTF-8.

    Raises:
        OSError: The file does not exist, may not be read, is not a regular file, or has more than
            `MAX_TEXT_BYTES`.
        UnicodeDecodeError: The content is not UTF-8.
    """
    return read_bytes(path, MAX_TEXT_BYTES).decode("utf-8")


def _kind(mode: int) -> str | None:
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def _check(mode: int, path: Path | str) -> None:
    kind = _kind(mode)
    if kind is None:
        return
    if kind == "a folder":
        raise IsADirectoryError(errno.EISDIR, "it is a folder; expected a file", str(path))
    raise OSError(
        errno.EINVAL,
        f"it is {kind}; expected a regular file, because it is read more than once. Write the "
        "content to a file and pass that",
        str(path),
    )
