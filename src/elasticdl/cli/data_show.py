"""Output of `elasticdl data show`: tables of fields and records, pictures as coloured blocks.

`data/overview.py` reads the files.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from rich import box
from rich.color import Color
from rich.markup import escape
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from elasticdl.cli.printable import printable
from elasticdl.data.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from elasticdl.data.batch import Record
    from elasticdl.data.overview import Overview

    Array: TypeAlias = np.ndarray[Any, Any]

_UNITS = ("B", "kB", "MB", "GB", "TB")
_UNIT = 1000
_MAX_VALUES = 6
_MAX_BYTES = 40
_MAX_COLUMNS = 7
# Where there is room, columns of these types are broken at spaces only; others are narrowed.
_TIMES = {"date", "time", "timestamp"}
_NARROW = 4
# Laying out tens of thousands of rows takes a minute, and is more than anyone reads.
_MAX_FIELDS = 500
_COLUMN_PADDING = 3
_BRIGHTEST = 255
# A smaller array may be any other list of numbers.
_MIN_SIDE, _MIN_GUESSED_SIDE = 8, 16
_PICTURE_COLUMNS = 32
_RGB = 3
_SHADES = " ░▒▓█"
_UPPER_HALF = "▀"


def show(overview: Overview, console: Console) -> None:
    """Print the fields and the first records of files."""
    about = "about " if overview.is_estimate else ""
    facts = [
        counted(len(overview.files), "file"),
        f"{about}{overview.num_records:,} record{'' if overview.num_records == 1 else 's'}",
        _size(overview.size_bytes),
        *([overview.layout] if overview.layout else []),
    ]
    console.print(Text(f"{overview.format}: {', '.join(facts)}", "bold"))
    if overview.note:
        console.print(Text(printable(overview.note)))
    if overview.raw:
        console.print(_raw(overview.raw))
        return
    if not overview.fields:
        return
    console.print(_fields(overview))
    if overview.records:
        console.print(_records(overview, console))


def _fields(overview: Overview) -> Table:
    title = f"Fields, in the first {overview.num_looked_at:,}"
    if overview.num_looked_at == overview.num_records:
        title = "Fields"
    table = Table("field", "dtype", "shape", "values", title=title, **_STYLE)
    for field in overview.fields[:_MAX_FIELDS]:
        words = (field.name, field.dtype, field.shape, field.values)
        table.add_row(*(Text(printable(each)) for each in words))
    if len(overview.fields) > _MAX_FIELDS:
        table.caption = f"... and {len(overview.fields) - _MAX_FIELDS:,} more fields"
    return table


_STYLE: dict[str, Any] = {"box": box.SIMPLE_HEAD, "title_justify": "left", "title_style": "bold"}


def _records(overview: Overview, console: Console) -> Table:
    """Build a table with a row per record, or with a column per record.

    Records become columns if there are too many fields for one row, or if they contain pictures
    that fit side by side.
    """
    records = overview.records
    names = [field.name for field in overview.fields if field.can_be_shown][:_MAX_FIELDS]
    in_colour = console.color_system is not None
    classes = {overview.label: overview.classes}
    cells = [
        [_cell(record.get(name), classes.get(name, ()), in_colour=in_colour) for name in names]
        for record in records
    ]
    # Pictures are tall, but several of them fit side by side.
    width = sum(_picture_width(record) + _COLUMN_PADDING for record in records)
    have_pictures = width > _COLUMN_PADDING * len(records)
    fit = width + max(map(len, names), default=0) + _COLUMN_PADDING <= console.width
    if len(names) > _MAX_COLUMNS or (have_pictures and fit):
        table = Table("", *(str(i) for i in range(len(records))), title="Records", **_STYLE)
        for i, name in enumerate(names):
            table.add_row(Text(printable(name)), *(row[i] for row in cells))
        return table
    times = {field.name for field in overview.fields if field.dtype in _TIMES}
    texts = [[name, *(str(row[i]) for row in cells)] for i, name in enumerate(names)]
    padding = _COLUMN_PADDING * (len(names) + 2)
    is_tight = padding + sum(max(map(len, column)) for column in texts) > console.width
    fixed = {
        name: max(len(word) for text in column for word in text.split())
        for name, column in zip(names, texts, strict=True)
        if name in times and is_tight and not have_pictures
    }
    if padding + sum(fixed.get(name, _NARROW) for name in names) > console.width:
        fixed = {}
    columns = [
        Column(escape(printable(name)), overflow="fold", width=fixed.get(name)) for name in names
    ]
    table = Table("", *columns, title="Records", **_STYLE)
    for number, row in enumerate(cells):
        table.add_row(Text(str(number), "dim"), *row)
    return table


def _picture_width(record: Record) -> int:
    pictures = [picture for array in record.values() if (picture := as_picture(array)) is not None]
    return max((_shrunk(picture).shape[1] for picture in pictures), default=0)


def _raw(records: Sequence[bytes]) -> Table:
    table = Table("", "bytes", title="Records, which are not tf.Examples", **_STYLE)
    for number, record in enumerate(records):
        shown = record[:_MAX_BYTES]
        more = f" ... ({len(record):,} bytes)" if len(record) > _MAX_BYTES else ""
        table.add_row(Text(str(number), "dim"), Text(repr(shown) + more))
    return table


def _cell(array: Array | None, classes: Sequence[str], *, in_colour: bool) -> RenderableType:
    if array is None:
        return Text("-", "dim")
    if classes and array.size == 1:
        return Text(f"{_shortened(array)} ({printable(classes[int(array.item())])})")
    picture = as_picture(array)
    if picture is not None:
        return draw(picture, in_colour=in_colour)
    return Text(_shortened(array))


def _shortened(array: Array) -> str:
    """Format the values of an array, or only the first ones if there are many."""
    values = array.ravel()[:_MAX_VALUES].tolist()
    words = ", ".join(map(_value, values))
    if array.size == 1:
        return words
    more = f", ... ({array.size:,} values)" if array.size > _MAX_VALUES else ""
    return f"[{words}{more}]"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if not isinstance(value, bytes):
        return str(value)
    more = "..." if len(value) > _MAX_BYTES else ""
    try:
        return repr(value[:_MAX_BYTES].decode()) + more
    except UnicodeDecodeError:
        return repr(value[:_MAX_BYTES]) + more


def _size(num_bytes: float) -> str:
    unit = 0
    while num_bytes >= _UNIT and unit < len(_UNITS) - 1:
        num_bytes /= _UNIT
        unit += 1
    return f"{num_bytes:.0f} {_UNITS[unit]}" if unit == 0 else f"{num_bytes:.1f} {_UNITS[unit]}"


# --- pictures ----------------------------------------------------------------------------------


def as_picture(array: Array) -> Array | None:
    """Convert an array that looks like a picture to RGB, so that it can be shown.

    The values are kept if all are from 0 to 255 and one is greater than 1. Otherwise they are
    rescaled to 0 to 255.

    Args:
        array: Any array. It looks like a picture if its shape is `[height, width]`,
            `[height, width, 1]` or `[height, width, 3]`, or if it is 1-D, has values from 0 to 255
            and has as many of them as a square picture.

    Returns:
        float64 `[height, width, 3]`, values 0 to 255. None if the array does not look like a
        picture, is too small, or contains values that are not finite numbers.
    """
    if array.dtype == object or not np.isfinite(array).all():
        return None
    shape = array.shape
    if len(shape) == 1:
        if array.min(initial=0) < 0 or array.max(initial=0) > _BRIGHTEST:
            return None
        shape = _guessed_shape(array.size)
    if len(shape) == _RGB - 1:
        shape = (*shape, 1)
    is_picture = len(shape) == _RGB and shape[2] in (1, _RGB) and min(shape[:2]) >= _MIN_SIDE
    if not is_picture:
        return None
    picture = array.reshape(shape).astype(np.float64)
    low, high = min(picture.min(), 0), picture.max()
    if low < 0 or not 1 < high <= _BRIGHTEST:
        picture = (picture - low) / max(high - low, np.finfo(np.float64).tiny) * _BRIGHTEST
    return np.broadcast_to(picture, (*shape[:2], _RGB))


def _guessed_shape(size: int) -> tuple[int, ...]:
    for depth in (1, _RGB):
        side = math.isqrt(size // depth)
        if side >= _MIN_GUESSED_SIDE and side * side * depth == size:
            return (side, side, depth)
    return ()


def draw(picture: Array, *, in_colour: bool) -> Text:
    """Draw a picture as lines of characters; each character shows two pixels, one above the other.

    Args:
        picture: Pixels `[height, width, 3]`, 0 to 255, shrunk here to fit.
        in_colour: Whether to colour the characters; otherwise they differ in brightness.
    """
    small = _shrunk(picture)
    if len(small) % 2:
        small = np.concatenate([small, small[-1:]])
    text = Text()
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        if text:
            text.append("\n")
        if in_colour:
            for one, other in zip(upper, lower, strict=True):
                style = Style(color=Color.from_rgb(*one), bgcolor=Color.from_rgb(*other))
                text.append(_UPPER_HALF, style)
        else:
            brightness = np.concatenate([[upper], [lower]]).mean(axis=(0, 2)) / (_BRIGHTEST + 1)
            text.append("".join(_SHADES[int(b * len(_SHADES))] for b in brightness))
    return text


def _shrunk(picture: Array) -> Array:
    """Shrink a picture to the available width, averaging pixels."""
    step = math.ceil(picture.shape[1] / _PICTURE_COLUMNS)
    height, width = (side // step * step for side in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // step, step, width // step, step, _RGB)
    return np.asarray(blocks.mean(axis=(1, 3)))
