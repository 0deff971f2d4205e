"""Converts dates and times of Arrow tables to seconds, so that models can use them as numbers.

    date, timestamp (with a zone or without)    since 1970-01-01 UTC
    time                                        since midnight
    duration                                    its length
    string: ISO 8601, or one of `FORMATS`       as one of these; without a zone it is UTC

Callers: `table.py`; `table_overview.py` and `prediction/input_columns.py` show times.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.wording import shown
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    Array: TypeAlias = np.ndarray[Any, Any]

# Cells that are missing values, except in columns of strings; the same as in pandas.
MISSING_WORDS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null",
)  # fmt: skip
# Formats for `strptime` in which the order of day, month and year is unambiguous. 5/6/2024 is
# ambiguous, so it stays a string.
FORMATS = tuple(
    date + time
    for date in ("%d.%m.%Y", "%Y/%m/%d")
    for time in ("", " %H:%M", " %H:%M:%S")
)  # fmt: skip
# `strptime` reads 1.2.3 as a date in the year 3; more likely, it is a version or a shortened year.
_FIRST_YEAR = dt.datetime(1000, 1, 1)  # noqa: DTZ001 - compared with times without a zone
# The type as which Arrow reads strings in ISO 8601.
_ISO_8601 = pa.timestamp("us")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 24 * 60 * 60


def iso_text(text: str) -> str:
    """Remove trailing zeros from the fraction of a second of a date or time in ISO 8601.

    Example:
        >>> iso_text("2024-01-01 10:00:00.000000"), iso_text("10:00:00.500Z")
        ('2024-01-01 10:00:00', '10:00:00.5Z')
    """
    return re.sub(r"\.(?!\d)", "", re.sub(r"(\.\d*?)0+(?!\d)", r"\1", text))


@functools.cache
def is_time(arrow_type: pa.DataType) -> bool:
    """Return whether a type is a date, a time, a timestamp or a duration."""
    types = pa.types
    return bool(
        types.is_date(arrow_type)
        or types.is_timestamp(arrow_type)
        or types.is_time(arrow_type)
        or types.is_duration(arrow_type)
    )


def seconds(column: pa.Array) -> Array:
    """Convert dates and timestamps to seconds since 1970-01-01 UTC, times to seconds of the day.

    Durations become their length in seconds.

    Returns:
        int64 if all are whole seconds, else float64; NaN for a missing value.
    """
    if column.null_count:
        known = column.is_valid().to_numpy(zero_copy_only=False)
        every = np.full(len(column), np.nan)
        every[known] = seconds(column.drop_null())
        return every
    if pa.types.is_date32(column.type):
        days = column.cast(pa.int32()).to_numpy(zero_copy_only=False)
        return np.asarray(days.astype(np.int64) * _DAY_S)
    unit = "ms" if pa.types.is_date64(column.type) else column.type.unit
    # time32 has the width of an int32.
    width = pa.int32() if pa.types.is_time32(column.type) else pa.int64()
    counts = column.cast(width).to_numpy(zero_copy_only=False).astype(np.int64)
    whole, rest = np.divmod(counts, _PER_SECOND[unit])
    # The parts are added as floats: the counts of nanoseconds themselves have too many digits.
    return np.asarray(whole + rest / _PER_SECOND[unit] if rest.any() else whole)


def are_times(column: pa.Array) -> bool:
    """Return whether timestamps parsed from strings are plausible: no year is before 1000.

    Otherwise, the strings were probably parsed with a wrong format.
    """
    earliest = pc.min(column.cast(pa.timestamp("s"), safe=False)).as_py()
    return earliest is None or earliest >= _FIRST_YEAR


def parsed_seconds(column: pa.Array, where: Callable[[int], str]) -> Array:
    """Parse strings as dates and times; return them as seconds.

    Args:
        column: Strings in ISO 8601 or one of `FORMATS`; a number counts as seconds.
        where: Function (i) -> name of the i-th of them, for an error message.

    Returns:
        int64 if all strings are whole seconds, in the same format and without a time zone; else
        float64.

    Raises:
        SchemaError: A string is neither a date or time nor a number.
    """
    data = column.cast(pa.large_binary())
    for form in ("", *FORMATS):
        try:
            text = data.cast(pa.large_string())
            times = pc.strptime(text, format=form, unit="s") if form else text.cast(_ISO_8601)
        except pa.ArrowInvalid:
            continue
        if are_times(times):
            return seconds(times)
    # Of mixed forms, or with a zone: parsed one by one.
    found: list[float | None] = []
    values = [b"" if value is None else value for value in data.to_pylist()]
    for value in values:
        try:
            found.append(_parsed(value.decode().strip()))
        except ValueError:
            found.append(None)
    if None not in found:
        return np.array(found, np.float64)
    at = found.index(None)
    dates = (
        value.decode()
        for value, second in zip(values, found, strict=True)
        if second is not None and not np.isnan(second)
    )
    example = next(dates, "2024-12-31 or 2024-12-31T23:59:00")
    raise SchemaError(
        f"{where(at)} holds {shown(values[at].decode(errors='replace'))}, which is not a date or "
        f"time. Write it like {example}."
    )


def _parsed(text: str) -> float:
    """Convert the text of a date, a time or a number to seconds; NaN for a missing value.

    Raises:
        ValueError: The text is none of these.
    """
    if text in MISSING_WORDS:
        return np.nan
    try:
        return float(text)
    except ValueError:
        moment = _moment(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return moment.timestamp()


def _moment(text: str) -> dt.datetime:
    """Parse one date or time; a time of day gets the date 1970-01-01.

    Raises:
        ValueError: The text is neither a date nor a time.
    """
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        pass
    for form in FORMATS:
        try:
            moment = dt.datetime.strptime(text, form)  # noqa: DTZ007 - UTC, as all without a zone
        except ValueError:
            continue
        if moment >= _FIRST_YEAR:
            return moment
    return dt.datetime.combine(dt.date(1970, 1, 1), dt.time.fromisoformat(text))
