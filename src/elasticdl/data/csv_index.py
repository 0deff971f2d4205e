"""Index of a CSV file: the starts of its rows, found by scanning each byte once.

A row ends at a line feed, a carriage return or both, outside of quotes; an empty line is not a
row. A quote opens a field only at the field's start, so that `5" disk` is text, as for pyarrow,
which parses the rows afterwards: both must count the same rows.

The content of the rows is not interpreted here.

Callers: `csv.py`.
"""

from __future__ import annotations

import csv
import json
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from elasticdl.data.wording import shown
from elasticdl.errors import CorruptDataError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.data.data_index import FileEntry
    from elasticdl.data.stored_file import StoredFile

    Array: TypeAlias = np.ndarray[Any, Any]

_QUOTE, _FEED, _RETURN, _COMMA = b'"\n\r,'
_BEFORE_A_FIELD = np.zeros(256, bool)
# A quote after a quote is the second half of an escaped one.
_BEFORE_A_FIELD[[_COMMA, _FEED, _RETURN, _QUOTE]] = True
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

BLOCK_BYTES = 256 << 10
"""Least number of bytes parsed to read a row: about a millisecond."""

MAX_ROW_BYTES = 64 << 20
"""Size of the longest row that is read."""

_READ_BYTES = 4 << 20


class CSVIndex(NamedTuple):
    """Positions of the blocks of rows in a file.

    Attributes:
        header: The names of the columns.
        offsets: Start of each block in bytes, and the end of the last one.
        firsts: Number of each block's first row, and one past the last row.
    """

    header: tuple[str, ...]
    offsets: tuple[int, ...]
    firsts: tuple[int, ...]

    def pack(self) -> bytes:
        """Return it as the layout of an index entry: a length, the header in JSON, two columns."""
        header = json.dumps(self.header).encode()
        numbers = np.array([self.offsets, self.firsts], "<i8").tobytes()
        return struct.pack("<I", len(header)) + header + numbers


def unpack(entry: FileEntry) -> tuple[StoredFile, CSVIndex]:
    """Return a file and the positions of its rows from an index entry.

    Raises:
        ValueError: The entry is inconsistent.
        struct.error: The entry is truncated.
        TypeError: Its header is not a list of names.
    """
    (header_bytes,) = struct.unpack_from("<I", entry.layout)
    numbers_at = 4 + header_bytes
    header = tuple(json.loads(entry.layout[4:numbers_at]))
    offsets, firsts = np.frombuffer(entry.layout, "<i8", offset=numbers_at).reshape(2, -1).tolist()
    if not all(isinstance(name, str) for name in header):
        raise TypeError("a name that is not a string")
    ascends = offsets == sorted(offsets) and firsts == sorted(firsts) and min(offsets) >= 0
    if not ascends or (offsets[-1], firsts[-1]) != (entry.size_bytes, entry.num_records):
        raise ValueError(f"rows up to {firsts[-1]} at byte {offsets[-1]}")
    return entry.counted_file(), CSVIndex(header, tuple(offsets), tuple(firsts))


def index_rows(
    file: StoredFile, block_bytes: int = BLOCK_BYTES, read_bytes: int = _READ_BYTES
) -> CSVIndex:
    """Read a CSV file once and return the positions of its rows.

    Args:
        file: The file.
        block_bytes: A block ends with the first row that makes it as large as this.
        read_bytes: Number of bytes read at a time.

    Raises:
        SchemaError: There is no header.
        CorruptDataError: A quote is not closed, or a row is longer than `MAX_ROW_BYTES`.
    """
    header_at = -1
    offsets: list[int] = []
    firsts: list[int] = []
    num_rows = 0
    for starts in _line_starts(file, read_bytes):
        rows = starts
        if header_at < 0 and len(starts):
            header_at, rows = int(starts[0]), starts[1:]
        while True:
            wanted = offsets[-1] + block_bytes if offsets else 0
            at = int(np.searchsorted(rows, wanted))
            if at == len(rows):
                break
            offsets.append(int(rows[at]))
            firsts.append(num_rows + at)
        num_rows += len(rows)
    if header_at < 0:
        raise SchemaError(
            f"{file.uri} is empty; its first line should be the names of the columns, separated "
            "by commas."
        )
    offsets.append(file.size_bytes)
    firsts.append(num_rows)
    header = _header(file, file.read(header_at, offsets[0]))
    return CSVIndex(header, tuple(offsets), tuple(firsts))


def row_starts(block: bytes) -> list[int]:
    """Return the starts of the rows in a block, which begins with a row and ends with another."""
    scanner = _Scanner(0)
    starts: list[int] = scanner.scan(block).tolist()
    # The last row of a file may have no end.
    return [*starts, scanner.line_start] if scanner.line_start < len(block) else starts


def read_header(file: StoredFile, first_row_at: int) -> tuple[str, ...]:
    """Return the names of the columns, which are before the first row.

    Args:
        file: The file.
        first_row_at: Start of its first row, in bytes.

    Raises:
        SchemaError: The line does not contain names.
    """
    begin = file.read(0, first_row_at).removeprefix(_BYTE_ORDER_MARK)
    # Empty lines may precede the header.
    return _header(file, begin.lstrip(b"\r\n"))


def _header(file: StoredFile, line: bytes) -> tuple[str, ...]:
    try:
        text = line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{file.uri}: its header is not UTF-8 ({error.reason} at byte {error.start}). Save "
            "the file as UTF-8."
        ) from None
    try:
        names = tuple(next(csv.reader([text]), []))
    except csv.Error as error:
        raise SchemaError(
            f"{file.uri}: its first line is not a header ({error}). A CSV file begins with a line "
            "of names."
        ) from None
    if all(_is_number(name) for name in names):
        raise SchemaError(
            f"{file.uri} has no header: its first line is {shown(text)}, which are numbers, not "
            "column names. Add a line with the names above it."
        )
    for name, count in Counter(names).items():
        if not name or count > 1:
            what = f"{count} columns named {name!r}" if name else "an unnamed column"
            raise SchemaError(f"{file.uri}: its header has {what}: {shown(text)}. Rename them.")
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _line_starts(file: StoredFile, read_bytes: int) -> Iterator[Array]:
    """Yield the starts of the non-empty lines of a file, the header first."""
    offset = len(_BYTE_ORDER_MARK) if file.read(0, 3) == _BYTE_ORDER_MARK else 0
    scanner = _Scanner(offset)
    while offset < file.size_bytes:
        data = file.read(offset, offset + read_bytes)
        if not data:
            break
        yield scanner.scan(data)
        offset += len(data)
        if offset - scanner.line_start > MAX_ROW_BYTES:
            # Such a row would be read whole, and take several times its size in memory.
            raise CorruptDataError(
                file.uri,
                scanner.line_start,
                f"a row of at most {MAX_ROW_BYTES:,} bytes",
                f"one that has not ended after {offset - scanner.line_start:,}"
                + ("; perhaps a quote is not closed" if scanner.inside else ""),
            )
    if scanner.inside:
        raise CorruptDataError(
            file.uri,
            scanner.line_start,
            "a row whose quotes are closed",
            "one still open at the end",
        )
    if scanner.line_start < offset:
        yield np.array([scanner.line_start], np.int64)


class _Scanner:
    """State of the scan of a file up to some byte.

    Attributes:
        line_start: Start of the line that has not ended yet.
        inside: Whether a quoted field has not ended yet.
    """

    def __init__(self, offset: int) -> None:
        self.line_start = offset
        self.inside = False
        self._offset = offset
        self._previous = _FEED

    def scan(self, data: bytes) -> Array:
        """Return the starts of the non-empty lines that end in the next bytes."""
        array = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(array == _FEED)
        if b"\r" in data:
            returns = np.flatnonzero(array == _RETURN)
            after = array[np.minimum(returns + 1, len(array) - 1)]
            # At the end, the next byte may be a line feed: an empty line, which is not a row.
            alone = (after != _FEED) | (returns == len(array) - 1)
            ends = np.union1d(ends, returns[alone])
        if self.inside or b'"' in data:
            quotes = self._real_quotes(array)
            before = np.searchsorted(quotes, ends) + self.inside
            ends = ends[before % 2 == 0]
            self.inside = (len(quotes) + self.inside) % 2 == 1
        else:
            self._previous = data[-1]
        lines: Array = np.concatenate(([self.line_start], self._offset + ends + 1))
        # In a line that ends with both, the carriage return is not content.
        both = (array[ends] == _FEED) & (ends > 0) & (array[ends - 1] == _RETURN)
        filled = self._offset + ends - both > lines[:-1]
        self.line_start = int(lines[-1])
        self._offset += len(data)
        return np.asarray(lines[:-1][filled])

    def _real_quotes(self, array: Array) -> Array:
        """Return the positions of the quotes that open or close a field."""
        quotes = np.flatnonzero(array == _QUOTE)
        before = array[quotes - 1]
        if len(quotes) and quotes[0] == 0:
            before[0] = self._previous
        opening = np.arange(len(quotes)) % 2 == int(self.inside)
        if not _BEFORE_A_FIELD[before[opening]].all():
            found = _without_stray(quotes.tolist(), before.tolist(), self.inside)
            quotes = np.array(list(found), np.int64)
        is_stray = array[-1] == _QUOTE and (not len(quotes) or quotes[-1] != len(array) - 1)
        self._previous = 0 if is_stray else int(array[-1])
        return quotes


def _without_stray(quotes: list[int], before: list[int], inside: bool) -> Iterator[int]:
    """Yield the quotes that are not mere text in an unquoted field."""
    last = -1
    for quote, byte in zip(quotes, before, strict=True):
        # The second of two quotes closes nothing if a stray one before it never opened a field.
        opens = last == quote - 1 if byte == _QUOTE else bool(_BEFORE_A_FIELD[byte])
        if inside or opens:
            inside = not inside
            last = quote
            yield quote
