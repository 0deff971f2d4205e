"""Shape of the values of a column of lists, kept in the metadata of an Arrow field.

A row of an image is stored as a list of its values. Only its writer knows the shape, so that it is
kept with the column, in the Parquet file too. Columns without it are as before.

Callers: `in_memory.py` writes it, `table.py` reads it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from elasticdl.data.field import Field

_KEY = b"elasticdl.shape"


def with_shape(field: pa.Field, shape: tuple[int, ...]) -> pa.Field:
    """Return a field with the shape of its values in one row, if a list does not say it."""
    if len(shape) <= 1:
        return field
    return field.with_metadata({_KEY: json.dumps(shape).encode()})


def shape_of(field: pa.Field) -> tuple[int, ...] | None:
    """Return the shape of a field's values in one row; None if it is not kept."""
    kept = (field.metadata or {}).get(_KEY)
    return None if kept is None else tuple(int(size) for size in json.loads(kept))


def check_shape(field: Field, kept: tuple[int, ...] | None, where: str) -> None:
    """Make sure that a field has the shape that its values were stored with.

    Axes of size 1 may be added or left out, and a field may have a single axis: these do not change
    the order of the values.

    Raises:
        SchemaError: It has another shape.
    """
    if kept is None or len(field.shape) <= 1 or field.varies:
        return
    if [size for size in kept if size != 1] != [size for size in field.shape if size != 1]:
        raise SchemaError(
            f"{where}: field {field.name!r} has the shape {list(kept)} in the data; data_schema() "
            f"says {list(field.shape)}. Correct it there, and change the order of axes in input_fn "
            "or in the model (Permute, transpose)."
        )
