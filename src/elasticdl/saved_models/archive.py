"""Reads zip archives and pickles of model files without unpickling anything.

Unpickling could run code in the file before the file has been checked.

Callers: `file_format.py`, `scan.py`.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import bounds

MAX_MEMBERS = 10_000
"""More than any real model has: PyTorch stores one member per tensor, Keras two or three in all."""

MAX_MEMBER_BYTES = 256 * 2**20
"""Largest member that is read as a whole: a config, a graph, the names in a pickle."""

_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
# A member's bytes follow its header, a name and an extra field; the header ends with the lengths of
# these two.
_LOCAL_HEADER = struct.Struct("<26x2H")
_READ_BYTES = 1 << 20
_UNKNOWN = "a name that is computed"


@contextmanager
def opened(path: Path, content: IO[bytes] | None = None) -> Iterator[zipfile.ZipFile]:
    """Context manager that opens a zip archive, after checking that it can be unpacked safely.

    Args:
        path: The file.
        content: An archive within the file; None means the file itself.

    Raises:
        ModelFileError: The archive is truncated or damaged, has two files with the same name or too
            many files, or unpacks to far more bytes than its size can explain (a zip bomb).
    """
    try:
        with zipfile.ZipFile(content or path) as archive:
            num_members = len(archive.infolist())
            if num_members > MAX_MEMBERS:
                raise ModelFileError(
                    f"{path}: there are {num_members:,} files in this archive; expected at most "
                    f"{MAX_MEMBERS:,} of a model. Save the model again."
                )
            total = sum(info.file_size for info in archive.infolist())
            bounds.check(path, "all that is in this archive", total, path.stat().st_size)
            names = [name.lower() for name in archive.namelist()]
            if len(set(names)) < len(names):
                # Libraries differ in which of the two they read.
                raise ModelFileError(
                    f"{path}: two files in this archive have the same name. Such a file can be "
                    "read in two ways and may be malicious; nothing of it was used."
                )
            for info in archive.infolist():
                _check_size(archive, info, path)
            yield archive
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ModelFileError(
            f"{path}: this zip archive is truncated or damaged: {error}. Copy or save it again."
        ) from error


def _check_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    """Reject a zip member (a file in the archive) that does not unpack to its declared size.

    The loaders of Python and other libraries inflate a member completely and check its size only
    afterwards.
    """
    num_bytes = info.compress_size
    if info.compress_type == zipfile.ZIP_DEFLATED:
        num_bytes = _inflated_bytes(archive, info)
    elif info.compress_type != zipfile.ZIP_STORED:
        raise ModelFileError(
            f"{path}: {info.filename} in it is compressed by a method whose decompressed size "
            "cannot be checked in advance. Save the model again; its library does not compress."
        )
    if num_bytes != info.file_size:
        more = "or more " if num_bytes > info.file_size else ""
        raise ModelFileError(
            f"{path}: {info.filename} in it declares {info.file_size:,} bytes, but decompresses to "
            f"{num_bytes:,} {more}bytes. The file is damaged or was built to exhaust memory; "
            "nothing was allocated."
        )


def _inflated_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return the unpacked size of a compressed member; stop once it exceeds the declared one."""
    assert archive.fp is not None  # noqa: S101 - it is open
    archive.fp.seek(info.header_offset)
    header = archive.fp.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise zipfile.BadZipFile(f"{info.filename} is missing")
    archive.fp.seek(sum(_LOCAL_HEADER.unpack(header)), io.SEEK_CUR)
    inflater, left, total = zlib.decompressobj(-zlib.MAX_WBITS), info.compress_size, 0
    try:
        while not inflater.eof and total <= info.file_size:
            stored = inflater.unconsumed_tail
            if not stored:
                stored = archive.fp.read(min(left, _READ_BYTES))
                left -= len(stored)
                if not stored:
                    break
            total += len(inflater.decompress(stored, _READ_BYTES))
    except zlib.error as error:
        raise zipfile.BadZipFile(f"{info.filename}: {error}") from error
    return total


def member(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Return the whole content of one file in an archive.

    Args:
        archive: The archive.
        name: Name of the file in the archive, such as a model's config.
        path: Path of the archive, for the error.

    Raises:
        ModelFileError: The file is larger than `MAX_MEMBER_BYTES`.
    """
    size = archive.getinfo(name).file_size
    if size > MAX_MEMBER_BYTES:
        raise ModelFileError(
            f"{path}: {name} in it declares {size:,} bytes; expected at most {MAX_MEMBER_BYTES:,} "
            "for the description of a model. The file is damaged or malicious."
        )
    return archive.read(name)


def globals_of(pickled: bytes, path: Path) -> tuple[str, ...]:
    """Return the dotted names that a pickle would import, in order, each once.

    They show which code unpickling would run.

    Args:
        pickled: One pickle.
        path: Path of the file, for errors.

    Raises:
        ModelFileError: `pickled` is not a complete pickle.
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
    """Return whether the pickled object is a plain dict.

    In a PyTorch file, such a dict is a checkpoint with a state_dict, not a whole model.
    """
    for opcode, _, _ in pickletools.genops(io.BytesIO(pickled)):
        if opcode.name not in {"PROTO", "FRAME"}:
            return opcode.name in {"EMPTY_DICT", "DICT", "MARK"}
    return False
