"""Incremental reader of event logs: returns the lines appended since the last read.

A log only grows, with two exceptions: the next attempt of the job truncates an incomplete last
line, and an output may be deleted and created again. Both are detected by checking that the bytes
read last are still at their offset; if not, the log is read again from the start. An incomplete
line is left for the next read.

Callers: `outputs.py`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from elasticdl import user_files
from elasticdl.artifacts.event_log import EVENTS_FILE
from elasticdl.errors import OutputError
from elasticdl.page.words import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from elasticdl.artifacts.folder import OutputFolder

# Small enough that parsed values stay in a core's cache, and that memory is reused.
_CHUNK_BYTES = 1 << 21
_REMEMBERED_BYTES = 128
# A file with a longer line is not a log: the line would be held in memory and scanned repeatedly.
_LONGEST_LINE_BYTES = 1 << 26
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class LogPiece:
    """Complete lines of a log.

    Attributes:
        data: The lines, each with its line feed.
        offset: Offset of the first line in the log, in bytes.
        is_new_log: Whether the log was rewritten, so that it no longer has the lines read before.
    """

    data: bytes
    offset: int
    is_new_log: bool = False


class LogReader:
    """Incremental reader of one log: returns the lines appended since the last read.

    Args:
        folder: The output whose log is read.
        written: If the output is on an object store, the local file in which a running job collects
            its log before each upload. While this file exists, it is read instead of the upload.
    """

    def __init__(self, folder: OutputFolder, written: Path | None = None) -> None:
        self._folder = folder
        self._path = folder.local_path(EVENTS_FILE)
        self._written = written
        self._offset = 0
        self._last = b""

    @property
    def offset(self) -> int:
        """Offset up to which the log has been read, in bytes."""
        return self._offset

    @property
    def is_local(self) -> bool:
        """Whether the log is read from a file on this machine."""
        return self._path is not None or (self._written is not None and self._written.is_file())

    def read(self) -> Iterator[LogPiece]:
        """Yield the complete lines that were appended since the last call.

        Raises:
            OutputError: The log exists but cannot be read.
        """
        try:
            with self._opened() as file:
                yield from self._pieces(file)
        except FileNotFoundError as error:
            if self._offset:
                raise self._error(
                    "it is no longer there. The output was removed or renamed; what had been read "
                    "before is shown"
                ) from error
        except OSError as error:
            raise self._error(
                f"{error.strerror or error}. Check that it is a file, and that this user may read "
                "it"
            ) from error

    def _opened(self) -> BinaryIO:
        if self._path is not None:
            return user_files.open_regular(self._path)
        if self._written is not None:
            with contextlib.suppress(FileNotFoundError):
                return user_files.open_regular(self._written)
        if not self._folder.exists(EVENTS_FILE):
            raise FileNotFoundError
        return io.BytesIO(self._folder.read_bytes(EVENTS_FILE))

    def _pieces(self, file: BinaryIO) -> Iterator[LogPiece]:
        is_new = self._offset > 0 and not self._is_same(file)
        if is_new:
            self._offset, self._last = 0, b""
        file.seek(self._offset)
        # The data after the last line feed; joined only when the next line feed is found.
        rest: list[bytes] = []
        while chunk := file.read(_CHUNK_BYTES):
            self._check_gzip(chunk, is_first=not rest)
            end = chunk.rfind(b"\n") + 1
            if end:
                whole = b"".join([*rest, chunk[:end]])
                rest = [chunk[end:]]
                yield LogPiece(whole, self._offset, is_new)
                is_new = False
                self._offset += len(whole)
                self._last = (self._last + whole[-_REMEMBERED_BYTES:])[-_REMEMBERED_BYTES:]
            else:
                rest.append(chunk)
                if len(rest) * _CHUNK_BYTES > _LONGEST_LINE_BYTES:
                    raise self._error(
                        f"the line at byte {self._offset:,} is longer than "
                        f"{size_text(_LONGEST_LINE_BYTES)}. Remove it, or restore the log from a "
                        "copy; the events after it are not shown"
                    )
        if is_new:
            yield LogPiece(b"", 0, is_new_log=True)

    def _check_gzip(self, chunk: bytes, *, is_first: bool) -> None:
        if is_first and not self._offset and chunk.startswith(_GZIP):
            raise self._error("it is compressed with gzip. Decompress it with gunzip")

    def _error(self, problem: str) -> OutputError:
        where = self._folder.where(EVENTS_FILE)
        return OutputError(f"{where}: the event log cannot be read: {problem}.")

    def _is_same(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._last))
        return file.read(len(self._last)) == self._last
