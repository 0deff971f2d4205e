"""Summary of a table's columns: types, ranges, missing values and frequent values.

A summary is computed in one pass over all rows, in bounded memory, and is stored as JSON. Models of
tables derive their features from it, for example the vocabulary of a column of strings.

Used by `snapshot.py` and `table_source.py`; read by `sql/` and `zoo/prebuilt/derived.py`.
`is_frame_index` is also for `dialects/default_input.py` and `saved_input.py`.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.field import MAX_EXACT
from elasticdl.data.table_times import seconds

# Arrow integer types, also as items of a list.
_WHOLE = re.compile(r"(?<![a-z])u?int(8|16|32|64)\b|decimal\d+\(\d+, 0\)")

_FRAME_INDEX = re.compile(r"__index_level_\d+__")

# Lists of this many rows are converted to numbers at a time: a list may be an image.
_LIST_ROWS = 256

MAX_DISTINCT = 10_000
"""Distinct values are counted individually up to this number of them."""


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of one column.

    Attributes:
        name: Its name.
        type: Its Arrow type, as a string.
        kind: `number`, `boolean`, `time`, `text`, `list`, `empty` (no value at all) or `other`.
        num_rows: Rows of the table.
        num_missing: Rows without a value; NaN counts as missing.
        minimum: Smallest number; times are converted to seconds (see `as_seconds`). None if the
            column has no numbers.
        maximum: Largest number. None under the same condition as `minimum`.
        mean: Mean of the numbers, also of those within lists. None under the same condition as
            `minimum`.
        deviation: Standard deviation of the numbers. None under the same condition as `minimum`.
        values: Distinct values with their counts, the most frequent first. None if there are more
            than `MAX_DISTINCT`, or if `kind` is not `number`, `boolean` or `text`.
        list_size: Number of values in every list of a column of lists; None if they differ.
        distinct_rate: Number of distinct values per row with a value; near 1 for identifiers. It
            is only computed for columns with more than `MAX_DISTINCT` distinct values, from the
            rows up to the batch that exceeded this limit; else None.
        missing_at: Place of the first row without a value, such as "a.csv, record 3", for errors;
            empty if there is none, or if its place is unknown.
        class_names: Names of the classes 0 .. n-1 for which the column's numbers stand, if the
            data define them, as a Hugging Face `ClassLabel` does; else empty.
    """

    name: str
    type: str
    kind: str
    num_rows: int
    num_missing: int
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    deviation: float | None = None
    values: tuple[tuple[Any, int], ...] | None = None
    list_size: int | None = None
    distinct_rate: float | None = None
    missing_at: str = ""
    class_names: tuple[str, ...] = ()

    @property
    def num_present(self) -> int:
        """Number of rows with a value."""
        return self.num_rows - self.num_missing

    @property
    def is_wide(self) -> bool:
        """Whether the column has integers of 2**53 or more, for which float64 is not exact.

        Different ones may become equal when they are converted to float64.
        """
        greatest = max(abs(self.minimum or 0), abs(self.maximum or 0))
        return is_whole(self.type) and greatest >= MAX_EXACT

    @property
    def is_constant(self) -> bool:
        """Whether all rows with a value have the same one: a model can learn nothing from it."""
        if self.values is not None:
            return len(self.values) == 1
        # Numbers without `values` have many distinct ones, even if float64 rounds them to one.
        return self.kind == "time" and self.minimum is not None and self.minimum == self.maximum

    @staticmethod
    def from_json(value: dict[str, Any]) -> ColumnSummary:
        """Return the summary that `to_json` wrote."""
        values = value["values"]
        pairs = None if values is None else tuple((item, count) for item, count in values)
        names = tuple(value.get("class_names", ()))
        return ColumnSummary(**{**value, "values": pairs, "class_names": names})

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)


class Summarizer:
    """Summarizes one column from its batches, in order.

    Args:
        name: The column's name.
        type: Its Arrow type.

    Attributes:
        first_missing: Number of the first row without a value, from 0; None if there is none.

    Example:
        >>> column = Summarizer("age", pa.int64())
        >>> column.add(pa.array([30, None]))
        >>> column.add(pa.array([50]))
        >>> found = column.summary()
        >>> found.num_rows, found.num_missing, found.mean, found.values
        (3, 1, 40.0, ((30, 1), (50, 1)))
    """

    def __init__(self, name: str, type: pa.DataType) -> None:  # noqa: A002 - Arrow's word
        self._name, self._type = name, type
        self._kind = kind_of(type)
        self._num_rows = self._num_missing = 0
        self.first_missing: int | None = None
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._minimum, self._maximum = math.inf, -math.inf
        self._counts: dict[Any, int] | None = (
            {} if self._kind in {"number", "boolean", "text"} else None
        )
        self._distinct_rate: float | None = None
        self._list_sizes: set[int] = set()

    def add(self, column: pa.Array) -> None:
        """Include the next batch of the column's values in the summary."""
        first = self._num_rows
        self._num_rows += len(column)
        if pa.types.is_duration(column.type):
            column = pa.array(seconds(column), from_pandas=True)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        if column.null_count and self.first_missing is None:
            self.first_missing = first + pc.index(column.is_null(), True).as_py()
        self._num_missing += column.null_count
        column = column.drop_null()
        if not len(column):
            return
        if self._kind in {"number", "boolean", "time"}:
            self._add_numbers(as_seconds(column) if self._kind == "time" else column)
        elif self._kind == "list":
            self._add_lists(column)
        if self._counts is not None:
            self._count_values(column)

    def _add_lists(self, column: pa.Array) -> None:
        self._list_sizes |= set(pc.unique(pc.list_value_length(column)).to_pylist())
        if kind_of(column.type.value_type) in {"number", "boolean"}:
            for start in range(0, len(column), _LIST_ROWS):
                self._add_numbers(pc.list_flatten(column.slice(start, _LIST_ROWS)))

    def _add_numbers(self, column: pa.Array) -> None:
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return
        self._minimum = min(self._minimum, float(numbers.min()))
        self._maximum = max(self._maximum, float(numbers.max()))
        # Batches are merged as in Chan et al., 1979 (CS-TR-79-773, Stanford).
        mean, count = float(numbers.mean()), self._count + len(numbers)
        change = mean - self._mean
        with np.errstate(over="ignore"):
            self._squares += float(np.square(numbers - mean).sum())
        # Not change**2, which raises where this becomes infinite.
        self._squares += change * change * self._count * len(numbers) / count
        self._mean += change * len(numbers) / count
        self._count = count

    def _count_values(self, column: pa.Array) -> None:
        counts = self._counts
        if counts is None:
            return
        is_whole = pa.types.is_decimal(column.type) and column.type.scale == 0
        if pa.types.is_decimal(column.type) and not is_whole:
            column = column.cast(pa.float64())
        for pair in pc.value_counts(column).to_pylist():
            value = int(pair["values"]) if is_whole else pair["values"]
            counts[value] = counts.get(value, 0) + pair["counts"]
        if len(counts) > MAX_DISTINCT:
            self._distinct_rate = len(counts) / sum(counts.values())
            self._counts = None

    def summary(self) -> ColumnSummary:
        """Return the summary of the batches so far."""
        seen = self._count > 0
        values = None
        if self._counts is not None:
            # Equal counts are sorted by value, so that the order of rows does not matter.
            by_count = sorted(self._counts.items(), key=lambda item: (-item[1], str(item[0])))
            values = tuple(by_count)
        empty = self._num_missing == self._num_rows
        return ColumnSummary(
            name=self._name,
            type=str(self._type),
            kind="empty" if empty else self._kind,
            num_rows=self._num_rows,
            num_missing=self._num_missing,
            minimum=self._minimum if seen else None,
            maximum=self._maximum if seen else None,
            mean=self._mean if seen else None,
            deviation=math.sqrt(self._squares / self._count) if seen else None,
            values=values,
            list_size=next(iter(self._list_sizes)) if len(self._list_sizes) == 1 else None,
            distinct_rate=self._distinct_rate,
        )


def is_frame_index(name: str) -> bool:
    """Return whether a column is the index of a DataFrame, which pandas wrote without a name.

    `to_parquet` calls it `__index_level_0__`. pandas does not treat it as a column. Its numbers are
    the positions of the rows in an earlier order, from which a model may learn their classes.
    """
    return _FRAME_INDEX.fullmatch(name) is not None


def is_whole(type_: str) -> bool:
    """Return whether a type is an integer type or a list of integers: `list<item: int32>`.

    The type is the string form of an Arrow type, as in `ColumnSummary.type`.
    """
    return _WHOLE.search(type_) is not None


def kind_of(arrow_type: pa.DataType) -> str:
    """Return the kind of values that an Arrow type has, as in `ColumnSummary.kind`."""
    types = pa.types
    if types.is_dictionary(arrow_type):
        return kind_of(arrow_type.value_type)
    if types.is_boolean(arrow_type):
        return "boolean"
    if (
        types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_decimal(arrow_type)
        or types.is_duration(arrow_type)
    ):
        # A duration is a number of seconds.
        return "number"
    if types.is_temporal(arrow_type):
        return "time"
    if (
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_string_view(arrow_type)
    ):
        return "text"
    if (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    ):
        return "list"
    return "empty" if types.is_null(arrow_type) else "other"


def as_seconds(column: pa.Array) -> pa.Array:
    """Convert dates and timestamps to seconds since 1970-01-01 UTC, times to seconds of the day.

    Returns:
        Seconds as float64. Float64 cannot represent all microseconds before 1684 and after 2255
        (such as in 9999-12-31), so these are rounded.
    """
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us"), safe=False)
        return pc.divide(column.view(pa.int64()).cast(pa.float64()), 1e6)
    zone = getattr(column.type, "tz", None)
    microseconds = column.cast(pa.timestamp("us", tz=zone), safe=False).view(pa.int64())
    return pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)
