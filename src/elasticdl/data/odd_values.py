"""Finds the few odd values that turn a column of numbers or dates into a text column.

One mistyped cell among thousands of numbers turns the whole column into text, which models treat as
categories; so do any number of marks for missing values, such as "?". The values are counted while
a table streams through; only the position of the first odd value is stored.

Callers: `csv_types.py`, `table_source.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.column_summary import kind_of
from elasticdl.data.table_times import MISSING_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

# With fewer values, or a larger share of odd ones, the column is text on purpose.
_MIN_VALUES = 10
_MAX_SHARE = 0.1
# Marks for a missing value; any number of them may be in a column.
_MARKS = (*MISSING_WORDS, "?", "??", "???", "-", "--", "---", ".", "..", "...", "*", "#")

_CLOCK = r"([T ]\d\d?:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?"
_CODE = r"^\s*[+-]?0\d"
# This number of codes, or this share, shows that a column is text; a single one may be a mistake.
_MIN_CODES = 3
_MIN_SHARE_OF_CODES = 0.01
# What the values would be -> the kind of such a column, and the form of a value as text.
_FORMS = {
    "numbers": (
        "number",
        r"^\s*[+-]?((\d+{point}?\d*|{point}\d+)([eE][+-]?\d+)?|(?i:inf|infinity))\s*$",
    ),
    "dates or times": (
        "time",
        r"^\s*([1-9]\d{3}[-/]\d\d?[-/]\d\d?|\d\d?\.\d\d?\.[1-9]\d{3})" + _CLOCK + r"\s*$"
        r"|^\d\d:\d\d(:\d\d)?$",
    ),
    "true and false": ("boolean", r"^\s*(?i:true|false)\s*$"),
}


class OddValue(NamedTuple):
    """The first odd value of a text column, such as "n.a." where nearly all others are numbers.

    Attributes:
        num_odd: Number of odd values.
        num_present: Number of values in the column, odd or not, without missing ones.
        others: Kind of all values that are not odd: `numbers`, `dates or times` or
            `true and false`.
        batch: The batch with the first odd value, as passed to `OddValues.add`.
        row: Its row in this batch.
    """

    num_odd: int
    num_present: int
    others: str
    batch: Any
    row: int


class OddValues:
    """Counts odd values: those that lack the form (number, date, boolean) of nearly all others.

    Args:
        num_rows: Number of rows of the table. Once more than a tenth of them have odd values, not
            counting marks for missing values, later values are ignored.
        missing: Words that are read as missing values, so that they are not odd.
        has_codes: Whether digits that begin with 0, such as "00700", show that the column is text
            on purpose, unless they are very few. Otherwise they are numbers.

    Example:
        >>> ages = OddValues(12)
        >>> ages.add(pa.array([31] * 10), "first")
        >>> ages.add(pa.array(["4o,2", ""]), "second")
        >>> ages.found()
        OddValue(num_odd=1, num_present=11, others='numbers', batch='second', row=0)
    """

    def __init__(
        self, num_rows: int, missing: Sequence[str] = MISSING_WORDS, *, has_codes: bool = False
    ) -> None:
        self._limit = int(num_rows * _MAX_SHARE)
        self._has_codes = has_codes
        self._missing = missing
        self._num_present = self._num_marks = self._num_codes = 0
        self._num_odd = dict.fromkeys(_FORMS, 0)
        self._firsts: dict[str, tuple[Any, int]] = {}

    def add(self, column: pa.Array, batch: Any, decimal: str = ".") -> None:
        """Count the odd values in one batch of the column's rows.

        Args:
            column: The values of the batch, as text or any other type.
            batch: Anything that identifies the batch, to be returned as `OddValue.batch`.
            decimal: The decimal point of numbers in text.
        """
        if not self._num_odd:
            return
        kind = kind_of(column.type)
        if kind == "text" and not pa.types.is_string(column.type):
            # Not all functions take string views.
            column = column.cast(pa.large_string())
        present = column.is_valid()
        marks: Any = False
        if kind == "text":
            words = pa.array(self._missing, column.type)
            present = pc.and_(present, pc.invert(pc.is_in(column, words)))
            stripped = pc.utf8_trim_whitespace(column)
            marks = pc.is_in(stripped, pa.array(_MARKS, column.type)).to_numpy(zero_copy_only=False)
            self._count_codes(column)
        present = present.to_numpy(zero_copy_only=False)
        marks = present & marks
        self._num_present += int(present.sum())
        self._num_marks += int(marks.sum())
        for others, (their_kind, form) in _FORMS.items():
            if others not in self._num_odd:
                continue
            fits: Any = kind == their_kind
            if kind == "text":
                matched = pc.match_substring_regex(column, form.replace("{point}", f"\\{decimal}"))
                fits = matched.fill_null(True).to_numpy(zero_copy_only=False)
            odd = np.flatnonzero(present & np.logical_not(fits))
            if len(odd):
                self._firsts.setdefault(others, (batch, int(odd[0])))
                self._num_odd[others] += int(np.count_nonzero(~marks[odd]))
            if self._num_odd[others] > self._limit:
                del self._num_odd[others], self._firsts[others]

    def _count_codes(self, column: pa.Array) -> None:
        if self._has_codes and "numbers" in self._num_odd:
            codes = pc.match_substring_regex(column, _CODE)
            self._num_codes += pc.sum(codes, min_count=0).as_py()
            if self._num_codes >= _MIN_CODES:
                del self._num_odd["numbers"]

    def found(self) -> OddValue | None:
        """Return the first odd value of the column with its place, and the number of odd values.

        Returns None if no value is odd, if too many values are odd to be mistakes, or if the column
        has too few values to tell.
        """
        if self._num_codes and self._num_codes >= _MIN_SHARE_OF_CODES * self._num_present:
            self._num_odd.pop("numbers", None)
        others = min(self._num_odd, key=self._num_odd.__getitem__, default=None)
        if others is None or not (count := self._num_odd[others] + self._num_marks):
            return None
        num_fitting = self._num_present - count
        most_odd = _MAX_SHARE * (self._num_present - self._num_marks)
        if num_fitting < _MIN_VALUES or self._num_odd[others] > most_odd:
            return None
        return OddValue(count, self._num_present, others, *self._firsts[others])


def because_of(odd: OddValue, value: str, where: str = "") -> str:
    """Return the reason, for a warning, why a column of numbers or dates was read as text.

    Args:
        odd: The odd values of the column.
        value: Text of the first one.
        where: File and line of the first one; empty if the table is no text file.

    Returns:
        `because of 1 of its 500 values: 'n.a.' ...`, with the remedy.
    """
    of_all = f"{odd.num_odd:,} of its {odd.num_present:,} values"
    first = ": " if odd.num_odd == 1 else ", such as "
    one = "the value" if odd.num_odd == 1 else "them"
    empty = f"leave the {'cell' if odd.num_odd == 1 else 'cells'} empty"
    if not where:
        made = " (in pandas: pd.to_numeric(..., errors='coerce'))" * (odd.others == "numbers")
        empty = f"make {'it' if odd.num_odd == 1 else 'them'} missing{made}"
    return (
        f"because of {of_all}{first}{value!r}{f' ({where})' if where else ''}. The others are "
        f"{odd.others}. If all should be, correct {one}, or {empty}."
    )
