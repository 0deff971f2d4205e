"""Zip archives and pickles of model files, looked at without unpickling anything.

Callers: `model_file.py`, `scan.py`.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasticdl.errors import ModelFileError

MAX_MEMBER_BYTES = 256 * 2**20
"""Of a member that is read whole: a config, a graph, the names in a pickle."""

_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_UNKNOWN = "a name that is computed"


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive.

    Raises:
        ModelFileError: It is truncated or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.lower() for name in archive.namelist()]
            if len(set(names)) < len(names):
                # Which of the two is read differs from library to library.
                raise ModelFileError(
                    f"{path}: two files in this archive have the same name. It was made to be read "
                    "in two ways; nothing of it was used."
                )
            yield archive
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ModelFileError(
            f"{path}: this zip archive is truncated or damaged: {error}. Copy or save it again."
        ) from error


def member(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Return a member's bytes.

    Raises:
        ModelFileError: It is too large to be what it says it is.
    """
    size = archive.getinfo(name).file_size
    if size > MAX_MEMBER_BYTES:
        raise ModelFileError(
            f"{path}: {name} in it says it is {size:,} bytes; expected at most "
            f"{MAX_MEMBER_BYTES:,} of what describes a model. The file is damaged or made to harm."
        )
    return archive.read(name)


def globals_of(pickled: bytes, path: Path) -> tuple[str, ...]:
    """Return the dotted names that a pickle would import, in order, each once.

    Args:
        pickled: One pickle.
        path: Of the file, for errors.

    Raises:
        ModelFileError: It is no whole pickle.
    """
    found: dict[str, None] = {}
    strings: list[str] = []
    memo: dict[int, str] = {}
    last = ""
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(pickled)):
            name = opcode.name
            if name in {"GLOBAL", "INST"}:
                found[str(argument).replace(" ", ".", 1)] = None
            elif name == "STACK_GLOBAL":
                found[".".join(strings[-2:]) if len(strings) >= 2 else _UNKNOWN] = None  # noqa: PLR2004 - module and name
            elif name in {"EXT1", "EXT2", "EXT4"}:
                found[_UNKNOWN] = None
            if name in _STRINGS:
                last = str(argument)
                strings.append(last)
            elif name == "MEMOIZE":
                memo[len(memo)] = last
            elif name in {"BINPUT", "LONG_BINPUT", "PUT"} and argument is not None:
                memo[int(argument)] = last
            elif name in {"BINGET", "LONG_BINGET", "GET"} and argument is not None:
                strings.append(memo.get(int(argument), _UNKNOWN))
    except Exception as error:
        raise ModelFileError(
            f"{path}: the objects in it are truncated or damaged: {error}. Save it again."
        ) from error
    return tuple(found)


def starts_with_a_dict(pickled: bytes) -> bool:
    """Return whether the object of a pickle is a plain dict."""
    for opcode, _, _ in pickletools.genops(io.BytesIO(pickled)):
        if opcode.name not in {"PROTO", "FRAME"}:
            return opcode.name in {"EMPTY_DICT", "DICT", "MARK"}
    return False
