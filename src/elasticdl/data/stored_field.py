"""How a field is stored in a tf.Example, and how it is read back for many records at once.

    float16, float32                      float_list
    bool, integers                        int64_list
    uint8 and int8 arrays,                one value of a bytes_list: raw little-endian bytes,
    float64, uint64                       because a list would be larger or would round
    string                                bytes_list

Reading accepts, for numbers, either the list they belong into or raw bytes of the right size.

Callers: `schema.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.field import STRING, Field
from elasticdl.data.wording import counted
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.data import example

    Array: TypeAlias = np.ndarray[Any, Any]

_RAW = frozenset(["float64", "uint64"])
_RAW_IF_MANY = frozenset(["uint8", "int8"])
_LIST_OF = {"f": "float", "O": "bytes"}
_KIND_WORDS = {"bytes": "bytes", "float": "floating numbers", "int64": "integers"}


def stored_values(field: Field, values: Array) -> Array | list[bytes]:
    """Return what an example holds for a field.

    Args:
        field: The field.
        values: Of the field's dtype.
    """
    if field.dtype == STRING:
        return values
    name = field.dtype.name
    if name in _RAW or (name in _RAW_IF_MANY and field.size > 1):
        return [values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()]
    return values.astype(np.float32 if field.dtype.kind == "f" else np.int64, copy=False)


def decoded_values(field: Field, group: example.Group, where: Callable[[int], str]) -> Array:
    """Return a field of all records of a group.

    Args:
        field: One of those the group has.
        group: Records with equal fields.
        where: What to call record i of the batch in an error message.

    Returns:
        `[records, *shape]`, of the field's dtype, writable.

    Raises:
        SchemaError: A record has another number or kind of values.
    """

    def of_field(row: int) -> str:
        return f"{where(group.rows[row])}: field {field.name!r}"

    kind = group.kinds[field.name]
    if kind == "bytes" and field.dtype != STRING:
        values = _from_raw_bytes(field, group, of_field)
    elif kind != _LIST_OF.get(field.dtype.kind, "int64"):
        raise SchemaError(
            f"{of_field(0)} is stored as {_KIND_WORDS[kind]}; data_schema() says "
            f"{field.dtype_name}. Correct the dtype there, or write the data again."
        )
    else:
        values = _from_list(field, group, of_field)
    return values.reshape(len(group.rows), *field.shape)


def _from_list(field: Field, group: example.Group, of_field: Callable[[int], str]) -> Array:
    values, counts = group.column(field.name)
    if not isinstance(counts, int) or counts != field.size:
        row = 0 if isinstance(counts, int) else int(np.argmax(counts != field.size))
        count = counts if isinstance(counts, int) else int(counts[row])
        raise SchemaError(
            f"{of_field(row)} has {counted(count, 'value')}; data_schema() says shape "
            f"{list(field.shape)}, which is {field.size}. Correct the shape there, or write the "
            "data again."
        )
    if values.dtype == field.dtype:
        return values
    return field.cast(values, lambda i: of_field(i // field.size))


def _from_raw_bytes(field: Field, group: example.Group, of_field: Callable[[int], str]) -> Array:
    num_bytes = field.size * field.dtype.itemsize
    raw = group.raw(field.name, num_bytes)
    if raw is None:
        row, found = _first_unlike(group, field.name, num_bytes)
        raise SchemaError(
            f"{of_field(row)} is stored as {found}; data_schema() says "
            f"{field.dtype_name}{list(field.shape)}, which would be one of {num_bytes} bytes. "
            "Correct data_schema(), or write the data again."
        )
    if field.dtype == np.bool_ and raw.max() > 1:
        row = int(np.argmax(np.any(raw > 1, axis=1)))
        raise SchemaError(f"{of_field(row)} holds the byte {raw[row].max()}; a bool is 0 or 1.")
    return raw.view(field.dtype.newbyteorder("<")).astype(field.dtype, copy=False)


def _first_unlike(group: example.Group, name: str, num_bytes: int) -> tuple[int, str]:
    """Return the first record that has not one value of so many bytes, and what it has."""
    values, counts = group.column(name)
    row = 0
    for row, count in enumerate(np.broadcast_to(counts, len(group.rows)).tolist()):
        if count != 1:
            return row, counted(count, "byte string")
        # All records before had one value, so that the row is the place in `values`, too.
        if len(values[row]) != num_bytes:
            break
    return row, f"a byte string of {counted(len(values[row]), 'byte')}"
