"""Default features of a table: the param `columns` of the table models, if the user gives none.

The features are derived from the values of all rows, never from the first row only. They have the
form of the param, so that they are stored in the TrainedModel and every later prediction uses the
same ones.

    numbers            -> standardised, minus an offset if they are large and differ little
    whole numbers      -> standardised too, even if there are few different ones
    booleans           -> 0 and 1
    dates, timestamps  -> time: standardised, with its position in the year, the week and the day
                          (dates have no position in the day, times of day have only that one)
    strings            -> a category of the vocabulary, or hashed where there are many values
    lists of one size  -> an array of numbers, minus one offset if all are large and differ little
    always the same, empty, or strings that differ in almost every row
                       -> skipped, and reported
    whole numbers that count the rows, or never repeat and have the name of an identifier
                       -> skipped, and reported, if there is another feature

A number or time with missing values is `nullable`. Columns that cannot be a feature are skipped
and reported.

Not a model: `elasticdl zoo list` skips this file. Used by `table_params.py` and `sql/`;
it imports no framework.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.data.column_summary import is_frame_index, is_whole
from elasticdl.data.type_words import in_words
from elasticdl.zoo.prebuilt.column_kinds import YEAR_2000_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from elasticdl.data.column_summary import ColumnSummary

MAX_VOCABULARY = 1000
"""A column of strings with more distinct values than this is hashed."""

_MIN_COUNT = 2
# A column whose distance from 0 is larger than this many standard deviations has an offset. In
# float32, its values would have fewer than four digits that differ.
_NARROW = 1000
# In a table with fewer rows, strings may be a category whose values do not repeat yet.
_IDENTIFIER_ROWS = 50
# Start of an Arrow type -> the cycles that apply to its values; other types have all cycles.
_CYCLES = {"date": ["year", "week"], "time3": ["day"], "time6": ["day"]}
# A column of strings with a larger share of distinct values is free text.
_FREE_TEXT = 0.9
# Names of identifiers: id, user_id, userId, ID, PassengerId, uuid, index.
_IDENTIFIER = re.compile(r"(?:^|[\W_])(?i:id|uuid|guid|index)$|[a-z](?:Id|ID)$")
# Names of columns without a name; pandas calls the first one by the other.
_NAMELESS, _NAMELESS_FIRST = re.compile(r"column_\d+"), {"column_1", "Unnamed: 0"}
# Numbers that are text because of how they are written: in words, their form, the form of others in
# such a column, and pandas' way to convert the column.
_WRITTEN_NUMBERS = (
    (
        "thousands separators",
        r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?",
        r"[+-]?\d+(\.\d+)?",
        ".replace(',', '')",
    ),
    (
        "thousands separators",
        r"[+-]?\d{1,3}(\.\d{3})+,\d+",
        r"[+-]?\d+(,\d+)?",
        ".replace('.', '').str.replace(',', '.')",
    ),
    (
        "currency signs",
        r"[+-]?[$€£¥] ?\d+(,\d{3})*(\.\d+)?",
        r"[+-]?\d+(\.\d+)?",
        ".replace('[$€£¥, ]', '', regex=True)",
    ),
    ("percent signs", r"[+-]?\d+(\.\d+)? ?%", r"[+-]?\d+(\.\d+)?", ".rstrip(' %')"),
)
# A date, with or without a time of day, that is parsed in a CSV file, but not in a data frame.
_DATE = re.compile(r"([1-9]\d{3}([-/])\d\d?\2\d\d?|(\d\d?\.){2}[1-9]\d{3})([T ]\d\d?:\d\d\S*)?")
_MIN_BUCKETS, _MAX_BUCKETS = 1024, 1 << 18


@dataclass(frozen=True)
class Derived:
    """The default features of a table, and the reasons for the choices that a user may doubt.

    Attributes:
        columns: The features, as in the param `columns` of the prebuilt table models.
        left_out: Column -> why it is not a feature.
        doubtful: Column used as a category -> why the user may want it as a number or a time.
        rounded: Column of integers that float64 rounds to only a few distinct values -> what to
            do.
    """

    columns: Sequence[dict[str, Any]]
    left_out: dict[str, str]
    doubtful: dict[str, str]
    rounded: dict[str, str]

    def notes(self) -> list[str]:
        """Return messages for the user: which columns are left out or in doubt, and why."""
        return [
            *(f"Column {name!r} is left out: {reason}." for name, reason in self.left_out.items()),
            *(f"Column {name!r} is a category: {why}." for name, why in self.doubtful.items()),
            *(f"Column {name!r} is rounded: {why}." for name, why in self.rounded.items()),
        ]


def derive(columns: Sequence[ColumnSummary], label: str, ignore: Collection[str] = ()) -> Derived:
    """Choose the default features of a table, from all columns except the label, in their order.

    Args:
        columns: The columns of the table.
        label: Name of the label's column.
        ignore: Names of columns that are not features.
    """
    features: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    rounded: dict[str, str] = {}
    used = [each for each in columns if each.name != label and each.name not in ignore]
    reasons = {column.name: _why_not(column) for column in used}
    identifiers = {
        each.name: "it looks like an identifier" for each in used if _is_identifier(each)
    }
    if used and _is_csv_index(used[0], columns):
        identifiers[used[0].name] = "it has no name, as the index that pandas writes"
    # In a table without another feature, columns that look like identifiers are kept.
    if any(not reasons[column.name] and column.name not in identifiers for column in used):
        reasons |= identifiers
    for column in used:
        if reason := reasons[column.name]:
            left_out[column.name] = reason
        else:
            features.append(feature_of(column))
            if conversion := _as_numbers(column) or _as_times(column):
                doubtful[column.name] = conversion
            if advice := _why_rounded(column):
                rounded[column.name] = advice
    return Derived(features, left_out, doubtful, rounded)


def feature_of(column: ColumnSummary) -> dict[str, Any]:
    """Return the default feature of one column, as an entry of the param `columns`."""
    nullable = {"nullable": True} if column.num_missing else {}
    if column.kind == "time":
        cycles = next((c for start, c in _CYCLES.items() if column.type.startswith(start)), None)
        found = {} if cycles is None else {"cycles": cycles}
        offset = _offset_of(column, YEAR_2000_S)
        return {"kind": "time", "column": column.name, **found, **nullable, **offset}
    if column.kind == "text":
        return {"kind": "category", "column": column.name, **vocabulary_of(column)}
    size = {"size": column.list_size} if column.kind == "list" else {}
    return {"kind": "number", "column": column.name, **size, **nullable, **_offset_of(column, 0.0)}


def _offset_of(column: ColumnSummary, usual: float) -> dict[str, float]:
    """Return `{"offset": ...}` if values would lose their differences in float32; else `{}`.

    Args:
        column: A column of numbers or times.
        usual: The default offset of such a column.
    """
    mean, deviation = column.mean, column.deviation
    if mean is None or not deviation or not math.isfinite(deviation):
        return {}
    return {"offset": mean} if abs(mean - usual) > _NARROW * deviation else {}


def _why_rounded(column: ColumnSummary) -> str:
    """Return advice for integers that differ too little for float64 to distinguish; else ""."""
    lowest, highest = column.minimum, column.maximum
    if column.kind != "number" or not column.is_wide or lowest is None or highest is None:
        return ""
    spacing = math.ulp(max(abs(lowest), abs(highest)))
    if highest - lowest >= _NARROW * spacing:
        return ""
    name = column.name
    return (
        f"its values, near {highest:.3g}, differ little, and the network reads them as float64, "
        f"which holds only multiples of {spacing:.0f} in this range. Subtract the same number from "
        f"them in all data, in pandas with df[{name!r}] -= {int(lowest)}. If they are identifiers, "
        f"leave the column out, as the param ignore=[{json.dumps(name)}] does"
    )


def vocabulary_of(column: ColumnSummary, size: int = MAX_VOCABULARY) -> dict[str, Any]:
    """Return the part of a feature's entry that determines how a column's values become ids.

    It is `{"vocabulary": [...]}`; or `{"buckets": n}`, to hash the values, if there are too many.
    Values that occur only once are not in the vocabulary, unless all values are of this kind.

    Args:
        column: The column.
        size: Maximum size of the vocabulary. With a size below the default, a longer vocabulary is
            cut to it, and the values are not hashed.
    """
    if column.values is not None and (len(column.values) <= size or size < MAX_VOCABULARY):
        # A value that occurs once teaches nothing yet; it shares the id of unseen values.
        seen = [value for value, count in column.values if count >= _MIN_COUNT]
        return {"vocabulary": sorted((seen or [value for value, _ in column.values])[:size])}
    count = column.num_rows if column.values is None else len(column.values)
    buckets = _MIN_BUCKETS
    while buckets < min(count, _MAX_BUCKETS):
        buckets *= 2
    return {"buckets": buckets}


def _why_not(column: ColumnSummary) -> str:
    if is_frame_index(column.name):
        return "it is the index of a DataFrame; write it with a name to use it"
    if column.kind == "empty":
        return "it has no value in any row"
    if column.kind == "other" or (column.kind == "list" and not _has_numbers(column)):
        words = _in_words(column)
        advice = ". Convert them to times, in pandas with df[{!r}].dt.to_timestamp()"
        more = advice.format(column.name) if words == "periods" else ""
        return f"nothing can be learned from {words}{more}"
    if column.kind == "list" and column.list_size is None:
        return "its lists differ in length; a sequence feature can read them"
    if column.num_missing == 0 and column.is_constant:
        return "it is the same in every row"
    return _why_free_text(column)


def _why_free_text(column: ColumnSummary) -> str:
    """Return why a column is text that differs from row to row, such as "no value occurs twice".

    Returns an empty string if it is not such a column.
    """
    if column.kind != "text" or column.num_present < _IDENTIFIER_ROWS:
        return ""
    share = _share_of_distinct(column)
    if share <= _FREE_TEXT:
        return ""
    if conversion := _as_numbers(column) or _as_times(column):
        return conversion
    if share == 1:
        return "no value occurs twice"
    if not column.num_missing:
        return "almost every row has a text of its own"
    return (
        f"{column.num_missing:,} of {column.num_rows:,} rows have no value, and almost every other "
        "row has a text of its own"
    )


def _as_numbers(column: ColumnSummary) -> str:
    """Return advice to convert a column of text such as "1,200" to numbers; else ""."""
    if column.kind != "text" or not column.values:
        return ""
    texts = [str(value).strip() for value, _ in column.values]
    for words, form, plain, conversion in _WRITTEN_NUMBERS:
        signed = [text for text in texts if re.fullmatch(form, text)]
        if signed and all(re.fullmatch(f"{form}|{plain}", text) for text in texts):
            return (
                f"its values look like numbers with {words}, such as {signed[0]!r}. To use it as "
                f"a number, convert it, in pandas with df[{column.name!r}].str{conversion}"
                ".astype(float)"
            )
    return ""


def _as_times(column: ColumnSummary) -> str:
    """Return advice to convert a column of text such as "2024-05-31" to dates; else ""."""
    if column.kind != "text" or not column.values:
        return ""
    texts = [str(value).strip() for value, _ in column.values]
    if not all(map(_DATE.fullmatch, texts)):
        return ""
    day_first = ", dayfirst=True" * ("." in texts[0][:3])
    return (
        f"its values look like dates, such as {texts[0]!r}. To use it as a time, convert it, in "
        f"pandas with pd.to_datetime(df[{column.name!r}]{day_first})"
    )


def _has_numbers(column: ColumnSummary) -> bool:
    return re.search(r"<.*(?:int|float|double|decimal|bool)", column.type) is not None


def _in_words(column: ColumnSummary) -> str:
    return "lists of text or of other values" if column.kind == "list" else in_words(column.type)


def _share_of_distinct(column: ColumnSummary) -> float:
    if column.values is None:
        return column.distinct_rate or 0.0
    return len(column.values) / column.num_present


def _is_csv_index(column: ColumnSummary, columns: Sequence[ColumnSummary]) -> bool:
    """Return whether a column is the index of a DataFrame in a CSV file.

    It is if it has whole numbers and no name, is the first column, and all others have names.

    Args:
        column: The column.
        columns: All columns of the table.
    """
    return (
        column.name in _NAMELESS_FIRST
        and column is columns[0]
        and column.kind == "number"
        and is_whole(column.type)
        and not any(_NAMELESS.fullmatch(each.name) for each in columns[1:])
    )


def _is_identifier(column: ColumnSummary) -> bool:
    """Return whether a column of whole numbers without repetitions identifies the rows.

    It does if the numbers count the rows (from 0 or 1, without gaps), or if the column has the name
    of an identifier.
    """
    is_number = column.kind == "number" and is_whole(column.type)
    if not is_number or column.num_present < _IDENTIFIER_ROWS or _share_of_distinct(column) < 1:
        return False
    least, greatest = column.minimum or 0, column.maximum or 0
    counts_rows = least in {0, 1} and greatest - least + 1 == column.num_present
    return counts_rows or _IDENTIFIER.search(column.name) is not None
