"""Column type check: decides whether values of a kind, such as text, fit a database column.

A database may accept values that it should reject: MySQL and DuckDB write numbers into a text
column as text, SQLite writes anything anywhere, and all of them silently round fractions in an
integer column. Such a column is rejected before anything is predicted.

Used by `check.py`, `training.py`, `features.py`, `prediction.py` and the files of the databases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from elasticdl.data.type_words import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

# Words in the names of types, as the databases write them; the first match counts.
_KINDS = (
    ("other", r"\[|interval|^_|struct|map\(|union|bytea|blob|binary|bit\b|json"),
    ("boolean", r"^bool|^tinyint\(1\)"),
    ("text", r"char|text|clob|string|enum|^set\b|^name$|uuid"),
    ("time", r"date|time|year"),
    ("integer", r"int|serial"),
    ("number", r"dec|num|float|double|real"),
)


def kind_of_column(type_: str) -> str:
    """Classify a database type as boolean, integer, number, time, text or other.

    Example:
        >>> [
        ...     kind_of_column(each)
        ...     for each in ("BIGINT", "double precision", "varchar(10)", "INT[]")
        ... ]
        ['integer', 'number', 'text', 'other']
    """
    found = type_.strip().lower()
    return next((kind for kind, words in _KINDS if re.search(words, found)), "other")


def kind_of_values(type_: pa.DataType) -> str:
    """Classify an Arrow type by the same words as `kind_of_column`; "empty" for the null type."""
    types = pa.types
    if types.is_boolean(type_):
        return "boolean"
    if types.is_integer(type_) or (types.is_decimal(type_) and not type_.scale):
        return "integer"
    if types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    if types.is_string(type_) or types.is_large_string(type_):
        return "text"
    if types.is_date(type_) or types.is_timestamp(type_):
        return "time"
    return "empty" if types.is_null(type_) else "other"


def note_on_times(schema: pa.Schema, trained: Mapping[str, str], model: str) -> str:
    """Return a note about columns that have dates where training had timestamps, or vice versa.

    Such columns are accepted; a date is read as midnight of that day. The note is empty if there
    are none.

    Args:
        schema: Columns of a query, with the names that they had in training.
        trained: Column -> its Arrow type when the model was trained.
        model: The model's name.
    """
    pairs = {
        each.name: (in_words(each.type), in_words(trained.get(each.name, ""))) for each in schema
    }
    found = [
        f"{name!r} holds {now}, but {model} was trained on {then}"
        for name, (now, then) in pairs.items()
        if {now, then} == {"dates", "timestamps"}
    ]
    return f"{'; '.join(found)}. A date is treated as midnight of that day." if found else ""


def why_unfit(column: str, type_: str, values: str) -> str:
    """Return why values of a kind cannot be written to a column, as a message; empty if they can.

    Args:
        column: Name of the column, for the explanation.
        type_: The column's type, as the database writes it; an empty type accepts anything
            (SQLite).
        values: Kind of the values, as returned by `kind_of_values`.

    Example:
        >>> why_unfit("salary", "DOUBLE", "number")
        ''
        >>> why_unfit("salary", "INTEGER", "number")
        'the column salary is INTEGER, so the fractions of the values would be lost. Change \
it to DOUBLE PRECISION, or choose another column.'
    """
    kind = kind_of_column(type_) if type_ else values
    fits = {
        "integer": {"integer", "number"},
        "number": {"number"},
        "boolean": {"boolean", "integer"},
        "text": {"text"},
        "time": {"time"},
    }
    if values == "empty" or values not in fits or kind == "other" or kind in fits[values]:
        return ""
    if (values, kind) == ("number", "integer"):
        return (
            f"the column {column} is {type_}, so the fractions of the values would be lost. Change "
            "it to DOUBLE PRECISION, or choose another column."
        )
    written = {
        "integer": "integers", "number": "numbers", "boolean": "true or false",
        "text": "text", "time": "times",
    }[values]  # fmt: skip
    return (
        f"the column {column} is {type_}, but the values are {written}. Change its type, or name "
        "another column."
    )


def why_generated(column: str) -> str:
    """Explain in an error message that the database computes a column, so it cannot be written."""
    return f"the column {column} is generated: the database computes it. Choose another column."
