"""Stores the shapes of arrays in the metadata of Arrow list columns, and reads them back.

An image is stored as a flat list of values. Only the writer knows its shape, so the shape is stored
with the column, in Parquet files too.

Callers: `in_memory.py` stores shapes, `table.py` reads them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from elasticdl.data.field import Field

_KEY = b"elasticdl.shape"


def with_shape(field: pa.Field, shape: tuple[int, ...]) -> pa.Field:
    """Return a column's Arrow field with the shape of one row's array in its metadata.

    `shape_of` reads it back. A shape of fewer than two axes is not stored, because the flat list of
    values already has it; the field is then returned unchanged.
    """
    if len(shape) <= 1:
        return field
    return field.with_metadata({_KEY: json.dumps(shape).encode()})


def shape_of(field: pa.Field) -> tuple[int, ...] | None:
    """Return the shape that `with_shape` stored in a column's metadata; None if there is none."""
    stored = (field.metadata or {}).get(_KEY)
    return None if stored is None else tuple(int(size) for size in json.loads(stored))


def check_shape(field: Field, stored: tuple[int, ...] | None, where: Callable[[], str]) -> None:
    """Check that the shape of a schema's field agrees with the stored shape of its values.

    Values of another shape, such as [3, 28, 28] for [28, 28, 3], would be mixed up without an
    error. Two differences are accepted, because they do not change the order of the values: axes of
    size 1 may be missing or added, and the field may be flat (a single axis).

    Args:
        field: The field of the schema.
        stored: The stored shape, from `shape_of`. None: accept every field.
        where: Function () -> name of the data, for the start of the error message.

    Raises:
        SchemaError: The field's shape does not match.
    """
    if stored is None or len(field.shape) <= 1 or field.varies:
        return
    in_data = [size for size in stored if size != 1]
    wanted = [size for size in field.shape if size != 1]
    if in_data == wanted:
        return
    if sorted(in_data) != sorted(wanted):
        advice = "Resize the data, or " + (
            "correct the shape in data_schema() and the model's inputs."
            if field.is_declared
            else "use a model for this shape."
        )
    elif field.is_declared:
        advice = (
            "Correct the shape in data_schema(), and change the order of axes in input_fn or in "
            "the model (Permute, transpose)."
        )
    else:
        advice = "Change the order of axes in the data, as with numpy.transpose()."
    raise SchemaError(
        f"{where()}: field {field.name!r} has the shape {list(stored)} in the data; "
        f"{field.requires(str(list(field.shape)))}. {advice}"
    )
