"""Default features of a table, for statements without a COLUMN clause.

The features are derived from the values of all rows, never from the first row only. They have the
form of the parameter `columns` of the prebuilt table models (`zoo/prebuilt/columns.py`), so that
they are stored in the TrainedModel and every later prediction uses the same ones.

    numbers            -> standardised
    few whole numbers  -> numbers as well: CATEGORY_ID makes them categories
    booleans           -> 0 and 1
    dates, timestamps  -> time: standardised, with its place in the year, the week and the day
                          (dates have no place in the day, times of day have only that one)
    texts              -> a category of the vocabulary, or hashed where there are many values
    lists of one size  -> an array of numbers
    always the same, empty, or a text that never repeats -> skipped, and reported

A number or time with missing values is `nullable`. Columns that cannot be a feature are skipped
and reported.

Used by `training.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.data.column_summary import is_whole
from elasticdl.sql.kinds import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.column_summary import ColumnSummary

MAX_VOCABULARY = 1000
"""A text column with more distinct values than this is hashed."""

_LEAST_COUNT = 2
# In a table with fewer rows, a text may well be a category whose values do not repeat yet.
_IDENTIFIER_ROWS = 50
# Start of an Arrow type -> the cycles that apply to its values; other types have all cycles.
_CYCLES = {"date": ["year", "week"], "time3": ["day"], "time6": ["day"]}
# Kinds that need a marker for missing values; a category has an id for them, a list is empty.
_MARKED_KINDS = ("number", "time")
_LEAST_BUCKETS, _MOST_BUCKETS = 1024, 1 << 18


@dataclass(frozen=True)
class Derived:
    """The features of a table.

    Attributes:
        columns: In the form that the prebuilt table models expect.
        left_out: Column -> why it is not a feature.
    """

    columns: Sequence[dict[str, Any]]
    left_out: dict[str, str]


def derive(columns: Sequence[ColumnSummary], label: str) -> Derived:
    """Return the features of all columns except the label, in their order."""
    features: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for column in columns:
        if column.name == label:
            continue
        reason = _why_not(column)
        if reason:
            left_out[column.name] = reason
        else:
            features.append(feature_of(column))
    return Derived(features, left_out)


def resolve(feature: Mapping[str, Any], columns: Sequence[ColumnSummary]) -> dict[str, Any]:
    """Complete a feature of a COLUMN clause with what its column's values determine.

    Args:
        feature: As `columns.features_of` returned it.
        columns: The columns of the table.

    Raises:
        KeyError: The table has no such column.
    """
    resolved = dict(feature)
    inner = resolved.get("of")
    if inner is not None:
        resolved["of"] = (
            [resolve(each, columns) for each in inner]
            if isinstance(inner, list)
            else resolve(inner, columns)
        )
        return resolved
    column = next(each for each in columns if each.name == resolved["column"])
    derive_from = resolved.pop("derive", None)
    if derive_from is not None and "kind" not in resolved:
        return feature_of(column)
    if derive_from is not None:
        resolved |= vocabulary_of(column, **derive_from)
    if {"buckets", "vocabulary"} & resolved.keys() and is_whole(column.type):
        # Otherwise the text form of a number would depend on the file that holds it. As integers,
        # values beyond 2^53 stay exact.
        resolved["dtype"] = "int64"
    is_marked = column.num_missing > 0 and resolved["kind"] in _MARKED_KINDS
    return resolved | ({"nullable": True} if is_marked else {})


def feature_of(column: ColumnSummary) -> dict[str, Any]:
    """Return the default feature of one column."""
    nullable = {"nullable": True} if column.num_missing else {}
    if column.kind == "time":
        cycles = next((c for start, c in _CYCLES.items() if column.type.startswith(start)), None)
        found = {} if cycles is None else {"cycles": cycles}
        return {"kind": "time", "column": column.name, **found, **nullable}
    if column.kind == "text":
        return {"kind": "category", "column": column.name, **vocabulary_of(column)}
    size = {"size": column.list_size} if column.kind == "list" else {}
    return {"kind": "number", "column": column.name, **size, **nullable}


def vocabulary_of(column: ColumnSummary, size: int = MAX_VOCABULARY) -> dict[str, Any]:
    """Return the mapping from a column's values to ids: a vocabulary, or a number of hash buckets.

    Args:
        column: The column.
        size: Maximum size of the vocabulary.
    """
    if column.values is not None and (len(column.values) <= size or size < MAX_VOCABULARY):
        # A value that occurs once teaches nothing yet; it shares the id of unseen values.
        seen = [value for value, count in column.values if count >= _LEAST_COUNT]
        return {"vocabulary": sorted((seen or [value for value, _ in column.values])[:size])}
    count = column.num_rows if column.values is None else len(column.values)
    buckets = _LEAST_BUCKETS
    while buckets < min(count, _MOST_BUCKETS):
        buckets *= 2
    return {"buckets": buckets}


def _why_not(column: ColumnSummary) -> str:
    if column.kind == "empty":
        return "it has no value in any row"
    if column.kind == "other":
        return f"nothing can be learned from {in_words(column.type)}"
    if column.kind == "list" and column.list_size is None:
        return "its lists differ in length; name it in COLUMN as SEQ_CATEGORY_ID"
    if column.num_missing == 0 and column.is_constant:
        return "it is the same in every row"
    if column.kind == "text" and _is_identifier(column):
        return "no value occurs twice"
    return ""


def _is_identifier(column: ColumnSummary) -> bool:
    present = column.num_rows - column.num_missing
    return (
        present >= _IDENTIFIER_ROWS and column.values is not None and len(column.values) == present
    )
