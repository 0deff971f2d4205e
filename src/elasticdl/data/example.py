"""Encodes and decodes tf.Examples (named lists of numbers or bytes) without TensorFlow.

`example_wire.py` reads and writes the bytes of one example, `example_groups.py` those of many at
once. This module exports the parts that the rest of the package uses, and decodes examples without
a schema. `schema.py` checks the shape and dtype of fields.

Callers: `schema.py`, `table.py`, `record_decoding.py`, everything that writes examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.example_groups import ExampleColumn, ExampleGroup, groups
from elasticdl.data.example_wire import Features, Kind, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.serialized import Serialized

    Array: TypeAlias = np.ndarray[Any, Any]

__all__ = [
    "ExampleColumn",
    "ExampleGroup",
    "Features",
    "Kind",
    "decode_batch_schemaless",
    "decode_groups_schemaless",
    "encode",
    "groups",
]


def decode_batch_schemaless(
    records: Sequence[bytes] | Serialized, where: Callable[[int], str]
) -> list[Record]:
    """Decode examples without a schema, by the field names and kinds in their bytes.

    Args:
        records: Serialized examples.
        where: Function (i) -> source of record i of the batch, for an error message.

    Returns:
        One dict per record, fields in the order of their names: 1-D arrays of float32, int64 or
        objects that are bytes. The arrays are writable.

    Raises:
        SchemaError: A record is not an example.

    Example:
        >>> decode_batch_schemaless([encode({"x": np.float32([1.0])})], str)
        [{'x': array([1.], dtype=float32)}]
    """
    return decode_groups_schemaless(groups(records, where), len(records))


def decode_groups_schemaless(batch: Iterable[ExampleGroup], num_records: int) -> list[Record]:
    """Decode, without a schema, records that `example_groups.groups` has grouped by structure.

    Args:
        batch: Groups of records; each record is in one of them.
        num_records: Number of records in all groups.

    Returns:
        One dict per record, with the arrays that `decode_batch_schemaless` returns.
    """
    decoded: list[Record] = [{} for _ in range(num_records)]
    for group in batch:
        names = sorted(group.kinds)
        columns = [_rows(group.column(name), len(group.rows)) for name in names]
        for row, values in zip(group.rows, zip(*columns, strict=True), strict=False):
            decoded[row] = dict(zip(names, values, strict=True))
    return decoded


def _rows(column: ExampleColumn, num_rows: int) -> Iterable[Array]:
    values, counts = column
    if isinstance(counts, int):
        return values.reshape(num_rows, counts)
    return np.split(values, np.cumsum(counts)[:-1])
