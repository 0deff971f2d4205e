"""Compares the types of a SELECT's columns with those that a model was trained on.

Most databases report the types before a row is read, so `check.py` compares them first. SQLite has
no type for an expression such as `CAST(area AS TEXT)` until its rows are read, so `prediction.py`
and `evaluation.py` compare the types again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from elasticdl.data.type_words import in_words
from elasticdl.errors import UsageError
from elasticdl.sql.error_locations import location_of, pointed_in
from elasticdl.sql.statements import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.sql.models import ModelRecord


def feature_columns(record: ModelRecord) -> list[str]:
    """Return the columns from which a model computes its features, as named in training."""
    return list(_columns_of(record.details.get("params", {}).get("columns", [])))


def unlike_trained(
    name: str, type_: pa.DataType, trained: str, record: ModelRecord, model: str
) -> str:
    """Describe how a column's type differs from the training data; empty if it does not.

    The text is an error message, such as "The column 'age' holds text, but m was trained on
    numbers. Convert it: ...".

    Args:
        name: The column, as the SELECT names it.
        type_: Type of the column.
        trained: Name of the column in the training data.
        record: How the model was trained.
        model: The model's name.
    """
    then = record.details.get("types", {}).get(trained, "")
    was, is_ = _kind(then), _kind(str(type_))
    if not was or was == is_ or pa.types.is_null(type_) or (trained != record.label and not is_):
        return ""
    cast = {"text": "VARCHAR", "numbers": "DOUBLE PRECISION"}.get(was)
    help_ = f" Convert it: CAST({name} AS {cast}) AS {name}." if cast else ""
    return (
        f"The column {name!r} holds {in_words(type_)}, but {model} was trained on "
        f"{in_words(then)}.{help_}"
    )


def check_column_types(  # noqa: PLR0917 - a query, and how the model was trained
    schema: pa.Schema,
    record: ModelRecord,
    model: str,
    statement: str,
    begins_at: tuple[int, int],
    label: str = "",
) -> None:
    """Check that the columns of rows just read have the types of the training data.

    `check.py` cannot find every mistake: SQLite, for example, derives a type from the values in the
    rows. Dates written as text are accepted, because models parse them.

    Args:
        schema: Columns of the rows, with the names that they had in training.
        record: How the model was trained.
        model: The model's name.
        statement: The statement's text, for errors; empty if it is unknown.
        begins_at: Line and column of the statement in its program.
        label: Name in the SELECT of the column with the true values; empty if there is none.

    Raises:
        UsageError: A column has another type.
    """
    named = {name: name for name in feature_columns(record)}
    if label:
        named[record.label] = label
    for trained, name in named.items():
        if trained not in schema.names:
            continue
        type_ = schema.field(trained).type
        then = record.details.get("types", {}).get(trained, "")
        if _kind(then) == "time" and _kind(str(type_)) == "text":
            continue
        problem = unlike_trained(name, type_, trained, record, model)
        if problem and not statement:
            raise UsageError(problem)
        if problem:
            place = location_of(name, statement, Span(0, len(statement)))
            raise UsageError(pointed_in(problem, statement, begins_at, place))


def _columns_of(features: Any) -> Iterator[str]:
    """Yield the names of the columns that (nested) features are computed from, each once."""
    seen: dict[str, None] = {}
    entries_ = list(features) if isinstance(features, list) else [features]
    while entries_:
        entry = entries_.pop(0)
        if "column" in entry:
            seen[entry["column"]] = None
        inner = entry.get("of", [])
        entries_ += inner if isinstance(inner, list) else [inner]
    yield from seen


def _kind(type_: str) -> str:
    """Return the kind of the Arrow type with this name, such as "numbers"; empty if unknown."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.match(type_)), "")


_KINDS = {
    "numbers": re.compile(r"u?int|float|double|halffloat|decimal|bool"),
    "text": re.compile(r"(large_)?string"),
    # Before "time": a time of day is not a date, but the pattern of "time" would match it too.
    "times of day": re.compile(r"time(32|64)"),
    "time": re.compile(r"date|time"),
}
