"""Text output of results: tables for users, CSV and JSON for programs, bars for importances.

    table   as wide as the terminal; a line counts the columns that do not fit; NULL is shown
    csv     RFC 4180 with a header; NULL is an empty field, an empty string is ""
    json    an array of objects for each result; values that JSON cannot represent (NaN) are strings

Control characters in strings are escaped before they reach a terminal.

Used by the shell and, for bars, by the notebook.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import re
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from elasticdl.data.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elasticdl.sql.database_interface import RowSource

FORMATS = ("table", "csv", "json")
SHOWN_ROWS = 1000
NULL = "NULL"

_WIDEST = 60
_BAR_CHARACTERS = 40
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_NEEDS_QUOTES = re.compile(r'[",\r\n]|^\s|\s$|^$')


def write_rows(
    rows: RowSource, stream: IO[str], form: str = "table", width: int | None = None
) -> None:
    """Write rows in one of the `FORMATS`.

    Args:
        rows: The rows; all are read, in bounded memory.
        stream: Output stream.
        form: One of the `FORMATS`.
        width: Terminal width in characters, to which a table is cut. None: do not cut it.
    """
    {"table": _write_table, "csv": _write_csv, "json": _write_json}[form](rows, stream, width)


def _write_table(rows: RowSource, stream: IO[str], width: int | None) -> None:
    from rich.cells import cell_len  # noqa: PLC0415 - not for `--help`

    names = [printable(name) for name in rows.schema.names]
    shown: list[list[str | None]] = []
    count = 0
    for batch in rows.batches:
        part = batch.slice(0, max(0, SHOWN_ROWS - count))
        columns = [column.to_pylist() for column in part.columns]
        shown += [[_cell(value, width) for value in row] for row in zip(*columns, strict=True)]
        count += batch.num_rows
    is_right = [_is_number(each.type) for each in rows.schema]
    widths = [
        max(cell_len(name), *(cell_len(row[at] or NULL) for row in shown), 1)
        for at, name in enumerate(names)
    ]
    fitting = _fitting(widths, width)
    _draw(stream, names[:fitting], shown, widths, is_right)
    stream.write(f"{counted(count, 'row')}")
    if count > SHOWN_ROWS:
        stream.write(f", of which {SHOWN_ROWS:,} are shown")
    if fitting < len(names):
        hidden = len(names) - fitting
        stream.write(
            f"; {counted(hidden, 'column')} not shown (terminal too narrow): "
            f"{', '.join(names[fitting:][:5])}{', ...' if hidden > 5 else ''}"  # noqa: PLR2004
        )
    stream.write("\n")


def _draw(
    stream: IO[str],
    names: Sequence[str],
    shown: Sequence[Sequence[str | None]],
    widths: Sequence[int],
    is_right: Sequence[bool],
) -> None:
    from rich import box  # noqa: PLC0415 - not for `--help`
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.ROUNDED)
    for at, name in enumerate(names):
        table.add_column(Text(name), no_wrap=True, min_width=widths[at])
        if is_right[at]:
            table.columns[-1].justify = "right"
    for row in shown:
        table.add_row(
            *(
                Text(NULL, "dim") if value is None else Text(value)
                for value, _ in zip(row, names, strict=False)
            )
        )
    # Wide enough for all columns that are left, so that rich does not cut them again.
    Console(file=stream, width=sum(widths) + 3 * len(widths) + 10).print(table)


def _fitting(widths: Sequence[int], width: int | None) -> int:
    """Return how many columns of a table fit into a terminal, at least one.

    Args:
        widths: Width of each column, in characters.
        width: Width of the terminal. None: it is not limited.
    """
    if width is None:
        return len(widths)
    total, fitting = 1, 0
    for each in widths:
        total += each + 3
        if total > width:
            break
        fitting += 1
    return max(fitting, 1)


def _cell(value: Any, width: int | None) -> str | None:
    if value is None:
        return None
    text = printable(value if isinstance(value, str) else _text(value))
    most = None if width is None else max(min(_WIDEST, width - 4), 1)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, (list, dict)):
        return json.dumps(plain(value), ensure_ascii=False)
    return str(value)


def printable(text: str) -> str:
    r"""Escape the control characters of a string.

    Example:
        >>> printable("red \x1b[31m")
        'red \\x1b[31m'
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _is_number(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(arrow_type)
        or pa.types.is_floating(arrow_type)
        or pa.types.is_decimal(arrow_type)
    )


def _write_csv(rows: RowSource, stream: IO[str], width: int | None) -> None:
    del width
    stream.write(",".join(_csv_field(name) for name in rows.schema.names) + "\n")
    for row in _each(rows):
        fields = ("" if value is None else _csv_field(_csv_text(value)) for value in row)
        stream.write(",".join(fields) + "\n")


def _csv_text(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)


def _csv_field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


def _write_json(rows: RowSource, stream: IO[str], width: int | None) -> None:
    del width
    names = rows.schema.names
    stream.write("[")
    for number, row in enumerate(_each(rows)):
        # Not a dict: of several columns with the same name, only the last one would be kept.
        values = zip(names, (plain(value) for value in row), strict=True)
        members = ", ".join(
            f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in values
        )
        stream.write(f"{',' if number else ''}\n  {{{members}}}")
    stream.write("\n]\n")


def _each(rows: RowSource) -> Iterator[tuple[Any, ...]]:
    for batch in rows.batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def plain(value: Any) -> Any:  # noqa: PLR0911 - one for each type
    """Convert a value to one that JSON can represent.

    Example:
        >>> plain(decimal.Decimal("1.50")), plain(float("nan")), plain(dt.date(2026, 1, 2))
        (1.5, 'NaN', '2026-01-02')
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case decimal.Decimal():
            if value == value.to_integral_value():
                return int(value)
            # A number if that is exact, else a string.
            return float(value) if decimal.Decimal(repr(float(value))) == value else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case list() | tuple():
            return [plain(each) for each in value]
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
    return str(value)


def bars(names: Sequence[str], values: Sequence[float], width: int | None = None) -> str:
    """Draw a bar chart as text, one line per value.

    Args:
        names: Labels of the bars.
        values: Lengths of the bars; a negative value has no bar.
        width: Terminal width in characters.

    Example:
        >>> print(bars(["age", "role"], [0.2, 0.1], width=30))
        age   ████████████████ 0.2
        role  ████████ 0.1
    """
    shown = [printable(name) for name in names]
    figures = [f"{value:.4g}" for value in values]
    margin = max((len(name) for name in shown), default=0) + 2
    room = _BAR_CHARACTERS
    if width is not None:
        longest = max((len(figure) for figure in figures), default=0)
        room = max(1, min(room, width - margin - 1 - longest - 4))
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    lines = []
    for name, value, figure in zip(shown, values, figures, strict=True):
        length = round(room * value / most) if most > 0 and 0 < value <= most else 0
        lines.append(f"{name.ljust(margin)}{'█' * length}{' ' if length else ''}{figure}")
    return "\n".join(lines)
