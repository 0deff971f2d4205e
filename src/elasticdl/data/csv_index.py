"""Index of a CSV file: the starts of its rows, found by scanning each byte once.

A row ends at a line feed, a carriage return or both, outside of quotes; an empty line is not a
row. A quote opens a field only at the field's start; the quote in `5" disk` is content. These are
also the rules of pyarrow, which parses the rows afterwards and must find the same number of them.

The content of the rows is not interpreted here, except for the file's format (`csv_format.py`).

Callers: `csv.py`.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from elasticdl.data.csv_format import (
    HEAD_BYTES,
    CSVFormat,
    FormatScan,
    column_names,
    format_of,
    has_tab_name,
)
from elasticdl.data.inflated_file import InflatedFile
from elasticdl.data.stored_file import StoredFile
from elasticdl.data.wording import shown
from elasticdl.errors import CorruptDataError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.data.data_index import FileEntry

    Array: TypeAlias = np.ndarray[Any, Any]

CSVFile: TypeAlias = StoredFile | InflatedFile
"""A file, decompressed if it is gzip."""

_QUOTE, _FEED, _RETURN = b'"\n\r'
_GZIP_START = b"\x1f\x8b"

BLOCK_BYTES = 256 << 10
"""Smallest block that is parsed to read one row; parsing it takes about a millisecond."""

MAX_ROW_BYTES = 64 << 20
"""Size of the longest row that is read."""

_READ_BYTES = 4 << 20

# Errors quote the start of a cell.
_SHOWN_BYTES = 80


class CSVIndex(NamedTuple):
    """Positions of the blocks of a CSV file: groups of consecutive rows that are parsed together.

    Attributes:
        header: The names of the columns.
        offsets: Byte offset of the start of each block; the last item is the end of the last block.
        firsts: Number of the first row of each block, from 0; the last item is the number of rows.
        format: How the file is written.
    """

    header: tuple[str, ...]
    offsets: tuple[int, ...]
    firsts: tuple[int, ...]
    format: CSVFormat = CSVFormat()

    def pack(self) -> bytes:
        """Return the attributes as bytes, to be stored as `FileEntry.layout`; `unpack` reads them.

        These are the size of the JSON text, the header and the format as JSON, then `offsets` and
        `firsts` as integers.
        """
        words: Any = self.header
        if self.format != CSVFormat():
            words = {"header": self.header, "format": self.format._asdict()}
        text = json.dumps(words).encode()
        numbers = np.array([self.offsets, self.firsts], "<i8").tobytes()
        return struct.pack("<I", len(text)) + text + numbers


def unpack(entry: FileEntry) -> tuple[CSVFile, CSVIndex]:
    """Return a file and the positions of its rows from an index entry.

    Raises:
        ValueError: The entry is inconsistent.
        struct.error: The entry is truncated.
        KeyError: It has no header.
        TypeError: Its header is not a list of names, or its format has unknown attributes.
    """
    (text_bytes,) = struct.unpack_from("<I", entry.layout)
    numbers_at = 4 + text_bytes
    words = json.loads(entry.layout[4:numbers_at])
    csv_format = CSVFormat()
    if isinstance(words, dict):
        words, csv_format = words["header"], CSVFormat(**words["format"])
    header = tuple(words)
    offsets, firsts = np.frombuffer(entry.layout, "<i8", offset=numbers_at).reshape(2, -1).tolist()
    if not all(isinstance(name, str) for name in header):
        raise TypeError("a name that is not a string")
    ascends = offsets == sorted(offsets) and firsts == sorted(firsts) and min(offsets) >= 0
    size_bytes = offsets[-1] if csv_format.is_compressed else entry.size_bytes
    if not ascends or (offsets[-1], firsts[-1]) != (size_bytes, entry.num_records):
        raise ValueError(f"rows up to {firsts[-1]} at byte {offsets[-1]}")
    stored = entry.indexed_file()
    file = InflatedFile(stored) if csv_format.is_compressed else stored
    return file, CSVIndex(header, tuple(offsets), tuple(firsts), csv_format)


def stored_of(file: CSVFile) -> StoredFile:
    """Return the file as it is stored, whose size and version an index keeps.

    For gzip, this is the compressed file.
    """
    return file.stored if isinstance(file, InflatedFile) else file


def open_csv(stored: StoredFile) -> CSVFile:
    """Return a file whose `read` returns CSV text: a decompressed view if it is gzip."""
    is_compressed = stored.read(0, len(_GZIP_START)) == _GZIP_START
    return InflatedFile(stored) if is_compressed else stored


def index_rows(
    file: CSVFile, block_bytes: int = BLOCK_BYTES, read_bytes: int = _READ_BYTES
) -> CSVIndex:
    """Read a CSV file once and return the positions of its rows.

    Args:
        file: The file.
        block_bytes: Minimum size of a block. A block ends with the row that reaches this size; only
            the last block, and a first row without a header, may be smaller.
        read_bytes: Number of bytes read at a time.

    Raises:
        SchemaError: The file is empty, its delimiter or its header cannot be determined, two
            columns have the same name, or a quote is not closed.
        CorruptDataError: A row is longer than `MAX_ROW_BYTES`.
    """
    head = file.read(0, HEAD_BYTES)
    csv_format = format_of(
        file.uri,
        head,
        is_whole=len(head) < HEAD_BYTES,
        is_compressed=isinstance(file, InflatedFile),
    )
    seen = FormatScan(csv_format)
    header_at = -1
    offsets: list[int] = []
    firsts: list[int] = []
    num_rows = 0
    for starts in _line_starts(file, csv_format, seen, read_bytes):
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
        by = "tabs" if has_tab_name(file.uri) else "commas"
        raise SchemaError(
            f"{file.uri} is empty; its first line should be the names of the columns, separated "
            f"by {by}."
        )
    offsets.append(file.size_bytes)
    firsts.append(num_rows)
    csv_format = seen.format()
    header = _header(file, file.read(header_at, offsets[0]), csv_format)
    if not csv_format.has_header:
        # The first row gets a separate block.
        offsets.insert(0, header_at)
        firsts = [0, *(first + 1 for first in firsts)]
    return CSVIndex(header, tuple(offsets), tuple(firsts), csv_format)


def row_starts(block: bytes, csv_format: CSVFormat) -> list[int]:
    """Return the byte offset of each row in a block of complete rows, from the block's start."""
    scanner = _Scanner(0, csv_format)
    starts: list[int] = scanner.scan(block).tolist()
    # The last row of a file may have no end.
    return [*starts, scanner.line_start] if scanner.line_start < len(block) else starts


def line_of(file: CSVFile, csv_format: CSVFormat, offset: int) -> int:
    """Return the number of the line at a byte offset, counted from 1, as in an editor.

    The file is read from its start up to the offset.

    Args:
        file: The file.
        csv_format: Its format.
        offset: Byte offset of any position in the line.
    """
    line = 1
    for start in range(csv_format.mark_bytes, offset, _READ_BYTES):
        data = file.read(start, min(start + _READ_BYTES, offset))
        # A character that spans two reads is no end of a line.
        text = data.decode(csv_format.encoding, "ignore")
        line += text.count("\n") or text.count("\r")
    return line


def read_header(file: CSVFile, first_row_at: int, csv_format: CSVFormat) -> tuple[str, ...]:
    """Read the names of the columns from the header of a file.

    Args:
        file: The file.
        first_row_at: Byte offset of the first row; the header is all text before it.
        csv_format: Its format; the file has a header.

    Raises:
        SchemaError: The line cannot be parsed, or has the same name twice.
    """
    return _header(file, file.read(csv_format.mark_bytes, first_row_at), csv_format)


def _header(file: CSVFile, line: bytes, csv_format: CSVFormat) -> tuple[str, ...]:
    try:
        # Empty lines may precede the header.
        text = csv_format.text(line).lstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{file.uri}: its header is not {csv_format.encoding} ({error.reason} at byte "
            f"{error.start}). Save the file as UTF-8."
        ) from None
    return column_names(file.uri, text, csv_format)


def _line_starts(
    file: CSVFile, csv_format: CSVFormat, seen: FormatScan, read_bytes: int
) -> Iterator[Array]:
    """Yield the starts of the non-empty lines of a file, the header first.

    Args:
        file: The file.
        csv_format: Its format, as detected from its first bytes.
        seen: Receives all bytes, to complete the format.
        read_bytes: Number of bytes read at a time.

    Raises:
        SchemaError: A quote is not closed.
        CorruptDataError: A row is longer than `MAX_ROW_BYTES`.
    """
    offset = csv_format.mark_bytes
    scanner = _Scanner(offset, csv_format)
    # A code unit is never cut in two.
    read_bytes = max(read_bytes - read_bytes % csv_format.width, csv_format.width)
    while (isinstance(file, InflatedFile) or offset < file.size_bytes) and (
        data := file.read(offset, offset + read_bytes)
    ):
        if len(data) % csv_format.width:
            raise CorruptDataError(
                file.uri, offset + len(data), f"text in {csv_format.encoding}", "half a character"
            )
        seen.add(data)
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
        opened_at = scanner.opened_at
        start = file.read(opened_at, opened_at + _SHOWN_BYTES)
        cell = start.decode(csv_format.encoding, "replace").splitlines()[0]
        raise SchemaError(
            f"{file.uri}, line {line_of(file, csv_format, opened_at)}: the quote that begins "
            f"{shown(cell)} is not closed. Close it; if this is the end of a cell, the quote "
            "before it is missing. A quote within text in quotes is written twice."
        )
    if scanner.line_start < offset:
        yield np.array([scanner.line_start], np.int64)


class _Scanner:
    """Finds the starts of lines outside of quotes, chunk by chunk.

    Attributes:
        line_start: Byte offset of the start of the line that has not ended yet.
        inside: Whether the bytes so far end within a quoted field.
        opened_at: Byte offset of the last quote that opened or closed a field. If `inside` is true,
            this quote opened the current field; an error about an unclosed quote names it.
    """

    def __init__(self, offset: int, csv_format: CSVFormat) -> None:
        self.line_start = offset
        self.inside = False
        self.opened_at = offset
        self._offset = offset
        self._previous = _FEED
        order = ">" if csv_format.encoding.endswith("be") else "<"
        self._unit = np.dtype(f"{order}u{csv_format.width}")
        # A quote after a quote is the second half of an escaped one.
        self._before_a_field = [_FEED, _RETURN, _QUOTE, ord(csv_format.delimiter)]

    def scan(self, data: bytes) -> Array:
        """Scan the next bytes of the file.

        Returns:
            Byte offset, in the file, of each non-empty line that ends in these bytes.
        """
        array = np.frombuffer(data, self._unit)
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
            if len(quotes):
                self.opened_at = self._offset + int(quotes[-1]) * self._unit.itemsize
        else:
            self._previous = int(array[-1])
        width = self._unit.itemsize
        lines: Array = np.concatenate(([self.line_start], self._offset + (ends + 1) * width))
        # In a line that ends with both, the carriage return is not content.
        both = (array[ends] == _FEED) & (ends > 0) & (array[ends - 1] == _RETURN)
        filled = self._offset + (ends - both) * width > lines[:-1]
        self.line_start = int(lines[-1])
        self._offset += len(data)
        return np.asarray(lines[:-1][filled])

    def _real_quotes(self, array: Array) -> Array:
        """Return the positions, in a chunk of code units, of the quotes that open or close a field.

        Other quotes are content, such as that in `5" disk`. This method also stores the last
        character of the chunk: it decides about a quote at the start of the next chunk.
        """
        quotes = np.flatnonzero(array == _QUOTE)
        before = array[quotes - 1]
        if len(quotes) and quotes[0] == 0:
            before[0] = self._previous
        opening = np.arange(len(quotes)) % 2 == int(self.inside)
        if not self._opens(before[opening]).all():
            opens = self._opens(before).tolist()
            found = _without_stray(quotes.tolist(), before.tolist(), opens, self.inside)
            quotes = np.array(list(found), np.int64)
        is_stray = array[-1] == _QUOTE and (not len(quotes) or quotes[-1] != len(array) - 1)
        self._previous = 0 if is_stray else int(array[-1])
        return quotes

    def _opens(self, before: Array) -> Array:
        """Return, for each character of an array, whether a quote after it may open a field.

        That is so for delimiters and line ends, and for quotes: the second quote of an escaped
        pair counts as one that opens the field again.
        """
        return np.isin(before, self._before_a_field)


def _without_stray(
    quotes: list[int], before: list[int], opens: list[bool], inside: bool
) -> Iterator[int]:
    """Yield the positions of the quotes that open or close a field; skip stray ones in content.

    Args:
        quotes: Positions of all quotes, ascending.
        before: The character before each quote.
        opens: Whether a quote after that character may open a field.
        inside: Whether the first quote is in a quoted field.
    """
    last = -1
    for quote, character, may_open in zip(quotes, before, opens, strict=True):
        # After a stray quote, a second one is stray too: the first never opened a field.
        if inside or (last == quote - 1 if character == _QUOTE else may_open):
            inside = not inside
            last = quote
            yield quote
