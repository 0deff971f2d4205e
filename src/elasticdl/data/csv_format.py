"""Format of a CSV file: delimiter, encoding, decimal point and header, detected from its content.

    delimiter   comma, semicolon, tab or vertical bar. Candidates are those in the first line. Of
                several candidates, the one that splits all rows into equally many cells is chosen;
                if several do, the one that makes all cells below the first line numbers. If the
                choice is still open, it is an error: a wrong guess would train on columns that do
                not exist.
    encoding    UTF-8, or UTF-16 with a byte order mark. A file that is neither is Windows-1252,
                the usual superset of Latin-1.
    decimal     a comma, if the delimiter is a semicolon, no number has a point, and at least one
                comma cannot be a thousands separator; else a point. If the file has both decimal
                commas and points, numbers with a comma are text.
    header      the first line, unless all its cells are numbers. If these numbers count up by one
                (0, 1, 2, or years), they may also be column names: this ambiguity is an error.

`csv_index.py` finds the rows of the file, once the format is known.

Callers: `csv_index.py`, `csv.py`.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from elasticdl.data.wording import counted, listed, shown
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEAD_BYTES = 64 << 10
"""Number of bytes from which the delimiter is detected."""

_DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
_MAX_ROWS = 100
_TAB_NAMES = (".tsv", ".tab", ".tsv.gz", ".tab.gz")

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# Bytes without a meaning in Windows-1252.
_NOT_1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")

# A whole cell between semicolons.
_POINT_NUMBER = re.compile(rb'(?<=[;\n\r"])[+-]?\d+\.\d+(?=[;\n\r"])')
_COMMA_NUMBER = re.compile(rb'(?<=[;\n\r"])[+-]?(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+)(?=[;\n\r"])')
_NUMBER = re.compile(r"\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*")


class CSVFormat(NamedTuple):
    """How a CSV file is written.

    Attributes:
        delimiter: The character between two cells.
        encoding: Name of the file's encoding, as `bytes.decode` takes it.
        decimal: The decimal point of its numbers.
        has_header: Whether the first line has the names of the columns.
        is_compressed: Whether it is gzip; positions are counted after decompression.
        mark_bytes: Size of the byte order mark at the start of the file; 0 without one.
        mixes_decimals: Whether some of its numbers have a decimal point and others a decimal comma.
            The latter are read as text.
    """

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    has_header: bool = True
    is_compressed: bool = False
    mark_bytes: int = 0
    mixes_decimals: bool = False

    @property
    def width(self) -> int:
        """Size of a code unit of the encoding in bytes: 2 for UTF-16, else 1."""
        return 2 if self.encoding.startswith("utf-16") else 1

    def text(self, data: bytes) -> str:
        """Decode bytes of the file.

        Raises:
            UnicodeDecodeError: They are not valid in the encoding of the file.
        """
        return data.decode(self.encoding)

    def utf8(self, data: bytes) -> bytes:
        """Convert bytes of the file to UTF-8."""
        return data if self.encoding == "utf-8" else self.text(data).encode()


def format_of(uri: str, head: bytes, *, is_whole: bool, is_compressed: bool = False) -> CSVFormat:
    """Detect the format of a file from its first bytes.

    `FormatScan` then checks the encoding and detects the decimal point, from all bytes.

    Args:
        uri: URI of the file.
        head: Its first bytes, after decompression.
        is_whole: Whether these are the whole file.
        is_compressed: Whether the file is gzip.

    Raises:
        SchemaError: Several delimiters are possible, or the first line may be either a header or
            a row of numbers.
    """
    mark, encoding = next(
        ((mark, name) for mark, name in _MARKS.items() if head.startswith(mark)), (b"", "utf-8")
    )
    text = _decoded(head[len(mark) :], encoding)
    delimiter = _delimiter(uri, text, is_whole=is_whole)
    csv_format = CSVFormat(delimiter, encoding, is_compressed=is_compressed, mark_bytes=len(mark))
    try:
        cells = next(_rows(text, delimiter), [])
    except csv.Error:
        # Reported where the header is read.
        cells = []
    return csv_format._replace(has_header=not _are_data(uri, cells, delimiter))


def _decoded(data: bytes, encoding: str) -> str:
    """Decode the first bytes of a file; an incomplete character at their end is dropped.

    Bytes that are not valid in this encoding are decoded as Latin-1, which never fails.
    """
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return data.decode("latin-1")


# --- delimiter ---------------------------------------------------------------------------------


def has_tab_name(uri: str) -> bool:
    """Return whether a file is named like one with tabs between the cells.

    Example:
        >>> has_tab_name("a.TSV"), has_tab_name("s3://bucket/my.tsv-export/a.csv")
        (True, False)
    """
    return uri.lower().endswith(_TAB_NAMES)


def _delimiter(uri: str, text: str, *, is_whole: bool) -> str:
    lines = text.lstrip("\r\n")
    first = re.split(r"[\r\n]", lines, maxsplit=1)[0]
    if "\t" in first and has_tab_name(uri):
        return "\t"
    found = [each for each in _DELIMITERS if each in first]
    if len(found) < 2:  # noqa: PLR2004 - a choice
        return found[0] if found else ","
    tables = {each: _table(lines, each, is_whole=is_whole) for each in found}
    # A character that is only part of a name in quotes separates nothing.
    tables = {each: rows for each, rows in tables.items() if rows and len(rows[0]) > 1}
    even = {each: rows for each, rows in tables.items() if len({len(row) for row in rows}) == 1}
    if len(even) > 1:
        numbers = {each: rows for each, rows in even.items() if _are_numbers(rows[1:])}
        even = numbers if len(numbers) == 1 else even
    likely = even or tables
    if len(likely) > 1:
        words = [_DELIMITERS[each] for each in likely]
        raise SchemaError(
            f"{uri}: {' and '.join(words)} could both separate its cells: its first line is "
            f"{shown(first)}. Put names that contain one of them in quotes, or rename the columns."
        )
    return next(iter(likely), ",")


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    return filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


def _table(text: str, delimiter: str, *, is_whole: bool) -> list[list[str]]:
    """Split the first rows of a file into cells, to compare the possible delimiters.

    Args:
        text: The start of the file.
        delimiter: The character between two cells.
        is_whole: Whether this is the whole file; otherwise the last row is dropped, since it may be
            incomplete.

    Returns:
        The cells of each row; empty if the text cannot be parsed with this delimiter.
    """
    try:
        rows = list(islice(_rows(text, delimiter), _MAX_ROWS + 1))
    except csv.Error:
        return []
    # The last one may be incomplete.
    return rows if is_whole or len(rows) == 1 else rows[:-1]


def _are_numbers(rows: Sequence[Sequence[str]]) -> bool:
    return bool(rows) and all(not cell or _NUMBER.fullmatch(cell) for row in rows for cell in row)


# --- header ------------------------------------------------------------------------------------


def _are_data(uri: str, cells: Sequence[str], delimiter: str) -> bool:
    """Return whether the first line of a file is a row of numbers, rather than the header.

    Args:
        uri: URI of the file, for the error.
        cells: Cells of its first line.
        delimiter: The character between two cells.

    Raises:
        SchemaError: The line may be either: its numbers count up by one.
    """
    numbers = [_number(cell, delimiter) for cell in cells]
    if not numbers or any(number is None for number in numbers):
        return False
    if all(float(later or 0) - float(number or 0) == 1 for number, later in pairwise(numbers)):
        # As pandas writes the columns of an array, or a table with a column per year.
        raise SchemaError(
            f"{uri}: its first line is {shown(delimiter.join(cells))}, which may be the names of "
            "the columns or the first row. Add a line with names above it, or replace these "
            "numbers by names."
        )
    return True


def _number(text: str, delimiter: str) -> float | None:
    try:
        return float(text.replace(",", ".") if delimiter == ";" else text)
    except ValueError:
        return None


def column_names(uri: str, line: str, csv_format: CSVFormat) -> tuple[str, ...]:
    """Return the names of a file's columns, from its first line.

    A column without a name is called `column_` and its position, counted from 1: `column_3`. In a
    file without a header, all columns are named this way.

    Args:
        uri: URI of the file, for errors.
        line: Its first line.
        csv_format: Its format.

    Raises:
        SchemaError: The line cannot be parsed, or has the same name twice.
    """
    text = line.strip("\r\n")
    try:
        names = next(csv.reader([text], delimiter=csv_format.delimiter), [])
    except csv.Error as error:
        raise SchemaError(
            f"{uri}: its first line is not a header ({error}). A CSV file begins with a line of "
            "names."
        ) from None
    if not csv_format.has_header:
        names = [""] * len(names)
    names = [name or f"column_{place}" for place, name in enumerate(names, 1)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SchemaError(
            f"{uri}: its header has several columns named {listed(twice)}: {shown(text)}. Rename "
            "them."
        )
    return tuple(names)


# --- encoding and decimal point, which need the whole file --------------------------------------


class FormatScan:
    """Completes the format of a file while it is read: its encoding and its decimal point.

    Pass all bytes of the file to `add`, in order, then call `format`.

    Args:
        csv_format: The format that `format_of` detected from the first bytes.
    """

    def __init__(self, csv_format: CSVFormat) -> None:
        self._format = csv_format
        marked = csv_format.mark_bytes > 0
        self._decoder = None if marked else codecs.getincrementaldecoder("utf-8")()
        self._is_partial = False
        self._is_utf8 = self._is_1252 = True
        self._may_have_commas = csv_format.delimiter == ";" and csv_format.width == 1
        self._has_points = self._has_commas = False

    def add(self, data: bytes) -> None:
        """Scan the next bytes; all bytes of the file must be passed, in order."""
        if self._decoder is not None and not (data.isascii() and not self._is_partial):
            self._decode(data)
        if self._may_have_commas:
            self._has_points = self._has_points or _has(data, b".", _POINT_NUMBER)
            self._has_commas = self._has_commas or _has(data, b",", _COMMA_NUMBER)

    def _decode(self, data: bytes) -> None:
        assert self._decoder is not None  # noqa: S101 - checked by the caller
        self._is_1252 = self._is_1252 and not _NOT_1252.search(data)
        if not self._is_utf8:
            return
        try:
            self._decoder.decode(data)
            self._is_partial = self._decoder.getstate()[0] != b""
        except UnicodeDecodeError:
            self._is_utf8 = False

    def format(self) -> CSVFormat:
        """Return the completed format; to be called after the last bytes."""
        found = self._format
        if self._decoder is not None and (not self._is_utf8 or self._is_partial):
            found = found._replace(encoding="cp1252" if self._is_1252 else "latin-1")
        if self._has_commas and not self._has_points:
            found = found._replace(decimal=",")
        return found._replace(mixes_decimals=self._has_commas and self._has_points)


def _has(data: bytes, character: bytes, pattern: re.Pattern[bytes]) -> bool:
    # Most blocks do not have the character, and are not searched.
    return character in data and pattern.search(data) is not None


def notes_on(formats: Sequence[tuple[str, CSVFormat, int]]) -> list[str]:
    """Return notes for the user on files that are not UTF-8, lack a header or mix decimal signs.

    Args:
        formats: URI, format and number of columns of each file.
    """
    notes = []
    names = {"cp1252": "Windows-1252", "latin-1": "Latin-1"}
    odd = [(uri, names[found.encoding]) for uri, found, _ in formats if found.encoding in names]
    if odd:
        uri, name = odd[0]
        notes.append(
            f"{_and_more(uri, odd)} not UTF-8 and read as {name}. If characters look wrong, "
            "save the file as UTF-8."
        )
    mixed = [uri for uri, found, _ in formats if found.mixes_decimals]
    if mixed:
        uri = mixed[0]
        notes.append(
            f"{_and_more(uri, mixed)} written with both decimal points and decimal commas: numbers "
            "with a comma are read as text. To have them read as numbers, use one decimal "
            "separator throughout a file, and no thousands separators."
        )
    bare = [(uri, count) for uri, found, count in formats if not found.has_header]
    if bare:
        uri, count = bare[0]
        last = f" to column_{count}" if count > 1 else ""
        notes.append(
            f"{_and_more(uri, bare)} without a header: the first line has only numbers. The "
            f"columns are named column_1{last}."
        )
    return notes


def _and_more(uri: str, files: Sequence[object]) -> str:
    more = len(files) - 1
    return f"{uri} and {counted(more, 'more file')} are" if more else f"{uri} is"
