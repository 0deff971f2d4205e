"""Whether values fit a column of a database, by the kind of its type.

A database may take what it should not: MySQL writes numbers into a text column as text, DuckDB
as well, SQLite writes anything anywhere, and all of them round a number with a fraction in an
integer column without a word. Such a column is refused before anything is predicted.

Used by `check.py`, `training.py`, `features.py`, `prediction.py` and the files of the databases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

# By the words of a type, as the databases write them; the first that matches counts.
_KINDS = (
    ("other", r"\[|interval|^_|struct|map\(|union|bytea|blob|binary|bit\b|json"),
    ("boolean", r"^bool|^tinyint\(1\)"),
    ("text", r"char|text|clob|string|enum|^set\b|^name$|uuid"),
    ("time", r"date|time|year"),
    ("integer", r"int|serial"),
    ("number", r"dec|num|float|double|real"),
)

# By the beginning of an Arrow type; the first that matches counts.
_WORDS = (
    ("lists", r"(large_|fixed_size_)?list"),
    ("whole numbers", r"u?int\d|decimal\d+\(\d+, 0\)"),
    ("numbers", r"float|double|halffloat|decimal"),
    ("true or false", r"bool"),
    ("text", r"(large_)?string"),
    ("timestamps", r"timestamp"),
    ("dates", r"date"),
    ("times of day", r"time"),
    ("bytes", r"(large_)?binary"),
    ("values that are always NULL", r"null"),
)


def kind_of_column(type_: str) -> str:
    """Return the kind of a database's type: boolean, integer, number, time, text or other.

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
    """Return the kind of an Arrow type, as `kind_of_column`."""
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


def in_words(type_: pa.DataType | str) -> str:
    """Return what values of an Arrow type are called in messages; nobody writes int64 in SQL.

    Example:
        >>> [
        ...     in_words(each)
        ...     for each in ("int64", "double", "decimal128(9, 0)", pa.list_(pa.utf8()))
        ... ]
        ['whole numbers', 'numbers', 'whole numbers', 'lists']
    """
    found = str(type_)
    return next((words for words, pattern in _WORDS if re.match(pattern, found)), found)


def note_on_times(schema: pa.Schema, trained: Mapping[str, str], model: str) -> str:
    """Return what to note of columns that hold dates instead of timestamps, or the other way.

    Args:
        schema: Columns of a query, as the model knows them.
        trained: Column -> its Arrow type when the model was trained.
        model: The model's name.
    """
    pairs = {
        each.name: (in_words(each.type), in_words(trained.get(each.name, ""))) for each in schema
    }
    found = [
        f"{name!r} holds {now}, and {model} was trained on {then}"
        for name, (now, then) in pairs.items()
        if {now, then} == {"dates", "timestamps"}
    ]
    return f"{'; '.join(found)}. A date counts as its midnight." if found else ""


def why_unfit(column: str, type_: str, values: str) -> str:
    """Return why values of a kind cannot be written to a column; empty if they can.

    Args:
        column: Its name, for the sentence.
        type_: Its type, as the database writes it; empty takes anything (SQLite).
        values: Kind of the values.

    Example:
        >>> why_unfit("salary", "DOUBLE", "number")
        ''
        >>> why_unfit("salary", "INTEGER", "number")
        'the column salary is INTEGER, and the values have fractions that it would lose. Make it \
DOUBLE PRECISION, or name another column.'
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
            f"the column {column} is {type_}, and the values have fractions that it would lose. "
            "Make it DOUBLE PRECISION, or name another column."
        )
    written = {
        "integer": "integers", "number": "numbers", "boolean": "true or false",
        "text": "texts", "time": "times",
    }[values]  # fmt: skip
    return (
        f"the column {column} is {type_}, and the values are {written}. Change its type, or name "
        "another column."
    )


def why_generated(column: str) -> str:
    """Return why a generated column takes no values."""
    return f"the column {column} is generated: the database computes it. Name another column."
