"""Storage of a field in a tf.Example: encoding, and decoding of many records together.

    float16, float32                      float_list
    bool, integers                        int64_list
    uint8 and int8 arrays,                one value of a bytes_list: raw little-endian bytes,
    float64, uint64                       because a list would be larger or would round
    string                                bytes_list

Numbers are read from either their own list or raw bytes of the right size.

Callers: `schema.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.field import STRING, Field
from elasticdl.data.wording import counted
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.data import example

    Array: TypeAlias = np.ndarray[Any, Any]

_RAW = frozenset(["float64", "uint64"])
_RAW_IF_MANY = frozenset(["uint8", "int8"])
_LIST_OF = {"f": "float", "O": "bytes"}
_KIND_WORDS = {"bytes": "bytes", "float": "floating numbers", "int64": "integers"}


def stored_values(field: Field, values: Array, where: str) -> Array | list[bytes]:
    """Convert a field's values to those that are stored in a `tf.Example`.

    Args:
        field: The field.
        values: Values of the field's dtype.
        where: The name of the field in an error message.

    Raises:
        SchemaError: An example cannot represent the missing strings: either some but not all
            strings of the field are missing, or the field is of varying length.
    """
    if field.dtype == STRING:
        num_missing = sum(value is None for value in values.ravel())
        if num_missing and (num_missing < values.size or field.varies):
            raise SchemaError(
                f"{where}: {num_missing} of {counted(values.size, 'string')} are None; in an "
                "example, all or none may be None. Use an empty string for a missing value."
            )
        return [] if num_missing else values
    name = field.dtype.name
    if name in _RAW or (name in _RAW_IF_MANY and field.size != 1):
        return [values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()]
    return values.astype(np.float32 if field.dtype.kind == "f" else np.int64, copy=False)


def decoded_rows(
    field: Field, group: example.ExampleGroup, where: Callable[[int], str]
) -> Sequence[Array]:
    """Decode a field for each record of a group.

    Args:
        field: The field. If it is nullable, the records may lack it.
        group: Records that all have the same fields, with values of the same kinds.
        where: Function (i) -> name of record i of the batch, for an error message.

    Returns:
        One array per record, of the field's shape and dtype, writable.

    Raises:
        SchemaError: The number or the kind of a record's values is wrong.
    """

    def of_field(row: int) -> str:
        return f"{where(group.rows[row])}: field {field.name!r}"

    column = _decoded(field, group, of_field)
    if isinstance(column, list):
        return column
    column = column.reshape(len(group.rows), *(field.shape if not field.varies else (-1,)))
    # Rows of single values are arrays of shape `()`, not scalars.
    return [column[i, ...] for i in range(len(column))] if column.ndim == 1 else list(column)


def _decoded(
    field: Field, group: example.ExampleGroup, of_field: Callable[[int], str]
) -> Array | list[Array]:
    kind = group.kinds.get(field.name)
    if kind is None:
        return field.missing(len(group.rows))
    if kind == "bytes" and field.dtype != STRING:
        return _from_raw_bytes(field, group, of_field)
    if kind != _LIST_OF.get(field.dtype.kind, "int64") and not (
        # A nullable integer field must have a floating dtype in the schema.
        (field.nullable and kind == "int64" and field.dtype.kind == "f")
        or (field.wide and kind == "int64")
    ):
        if field.nullable and not np.any(group.column(field.name).counts):
            # An empty list of another kind is also a missing value.
            return field.missing(len(group.rows))
        advice = field.advice(group.conversion_advice, "correct the dtype in data_schema()")
        if kind != "bytes" and field.dtype == STRING:
            # A conversion cannot bring the zeros back.
            advice += (
                " If it was text such as 00700, read it as text from the start (pandas: "
                f'dtype={{"{field.name}": str}}), because the numbers have lost their leading '
                "zeros."
            )
        raise SchemaError(
            f"{of_field(0)} is stored as {_KIND_WORDS[kind]}; {field.requires(field.dtype_name)}. "
            f"{advice}"
        )
    return _from_list(field, group, of_field)


def _from_list(
    field: Field, group: example.ExampleGroup, of_field: Callable[[int], str]
) -> Array | list[Array]:
    values, counts = group.column(field.name)
    if field.varies:
        return _lists(field, values, counts, of_field, len(group.rows))
    filled: Array | None = None
    if not isinstance(counts, int) or counts != field.size:
        each = np.broadcast_to(counts, len(group.rows))
        filled = each > 0
        if not field.nullable or not np.array_equal(each, np.where(filled, field.size, 0)):
            raise _wrong_count(field, group, counts, of_field)
    if values.dtype != field.dtype:
        rows = np.arange(len(group.rows)) if filled is None else np.flatnonzero(filled)
        values = field.cast(values, lambda i: of_field(int(rows[i // field.size])))
    if filled is None:
        return values
    every = field.missing(len(group.rows))
    every[filled] = values.reshape(-1, *field.shape)
    return every


def _lists(
    field: Field,
    values: Array,
    counts: int | Array,
    of_field: Callable[[int], str],
    num_rows: int,
) -> Array | list[Array]:
    """Split flat values into one list per record, cast to the field's dtype.

    Args:
        field: The field.
        values: The values of all records, 1-D.
        counts: Number of values per record: one number if all have equally many.
        of_field: Function (i) -> name of the field in the i-th record, for errors.
        num_rows: Number of records.

    Raises:
        SchemaError: The dtype would change a value.
    """
    if values.dtype != field.dtype:
        row_of = np.repeat(np.arange(num_rows), counts)
        values = field.cast(values, lambda i: of_field(int(row_of[i])))
    if isinstance(counts, int):
        return values.reshape(num_rows, counts)
    return np.split(values, np.cumsum(counts)[:-1])


def _wrong_count(
    field: Field,
    group: example.ExampleGroup,
    counts: int | Array,
    of_field: Callable[[int], str],
) -> SchemaError:
    wrong = np.atleast_1d(counts) != field.size
    if field.nullable:
        wrong &= np.atleast_1d(counts) > 0
    row = int(np.argmax(wrong))
    count = int(np.atleast_1d(counts)[row])
    empty = ' If it may be missing, add "nullable": True to the field there.' * (
        count == 0 and field.is_declared and not field.nullable
    )
    return SchemaError(
        f"{of_field(row)} has {counted(count, 'value')}; "
        f"{field.requires(f'shape {list(field.shape)}')}, which is {field.size}. "
        + field.advice(group.conversion_advice, "correct the shape in data_schema()")
        + empty
    )


def _from_raw_bytes(
    field: Field, group: example.ExampleGroup, of_field: Callable[[int], str]
) -> Array | list[Array]:
    if field.varies:
        return _raw_lists(field, group, of_field)
    num_bytes = field.size * field.dtype.itemsize
    raw = group.raw(field.name, num_bytes)
    if raw is None:
        if field.nullable:
            return _raw_or_missing(field, group, of_field)
        row, found = _first_unlike(group, field.name, num_bytes)
        raise SchemaError(
            f"{of_field(row)} is stored as {found}; "
            f"{field.requires(f'{field.dtype_name}{list(field.shape)}')}, which is {num_bytes} "
            "bytes. " + field.advice(group.conversion_advice, "correct data_schema()")
        )
    if field.dtype == np.bool_ and raw.max() > 1:
        row = int(np.argmax(np.any(raw > 1, axis=1)))
        raise SchemaError(f"{of_field(row)} holds the byte {raw[row].max()}; a bool is 0 or 1.")
    return raw.view(field.dtype.newbyteorder("<")).astype(field.dtype, copy=False)


def _raw_or_missing(
    field: Field, group: example.ExampleGroup, of_field: Callable[[int], str]
) -> Array:
    """Decode a nullable field that is stored as raw bytes; without a byte string, it is missing.

    Args:
        field: The field.
        group: The records.
        of_field: Function (i) -> name of the field in the i-th record, for errors.

    Returns:
        Array `[records, *shape]`, with NaN or None for missing values.

    Raises:
        SchemaError: A record has several byte strings, or one of another size.
    """
    stored, counts = group.column(field.name)
    every = field.missing(len(group.rows))
    at = 0
    for row, count in enumerate(np.broadcast_to(counts, len(group.rows)).tolist()):
        if count == 0:
            continue
        size = len(stored[at])
        if count > 1 or size != field.size * field.dtype.itemsize:
            found = counted(count, "byte string") if count > 1 else f"a byte string of {size} bytes"
            raise SchemaError(
                f"{of_field(row)} is stored as {found}; "
                f"{field.requires(f'{field.dtype_name}{list(field.shape)}')}. "
                + field.advice(group.conversion_advice, "correct data_schema()")
            )
        every[row] = np.frombuffer(stored[at], field.dtype.newbyteorder("<")).reshape(field.shape)
        at += 1
    return every


def _raw_lists(
    field: Field, group: example.ExampleGroup, of_field: Callable[[int], str]
) -> list[Array]:
    """Decode a field of lists of any length, each stored as raw bytes in one byte string.

    Args:
        field: The field.
        group: The records.
        of_field: Function (i) -> name of the field in the i-th record, for errors.

    Raises:
        SchemaError: A record does not have exactly one byte string of whole values.
    """
    stored, counts = group.column(field.name)
    width = field.dtype.itemsize
    if not np.all(np.asarray(counts) == 1) or any(len(value) % width for value in stored):
        raise SchemaError(
            f"{of_field(0)} is stored as bytes that are not {field.dtype_name} values. "
            + field.advice(group.conversion_advice, "correct the dtype in data_schema()")
        )
    return [
        np.frombuffer(bytearray(value), field.dtype.newbyteorder("<")).astype(field.dtype)
        for value in stored
    ]


def _first_unlike(group: example.ExampleGroup, name: str, num_bytes: int) -> tuple[int, str]:
    """Find the first record whose field is not one byte string of the expected size, for an error.

    Args:
        group: The records, of which at least one is wrong.
        name: Name of the field.
        num_bytes: The expected size.

    Returns:
        Position of the record in the group, and what it has instead, in words.
    """
    values, counts = group.column(name)
    row = 0
    for row, count in enumerate(np.broadcast_to(counts, len(group.rows)).tolist()):
        if count != 1:
            return row, counted(count, "byte string")
        # All earlier records had one value, so that `row` is also the position in `values`.
        if len(values[row]) != num_bytes:
            break
    return row, f"a byte string of {counted(len(values[row]), 'byte')}"
