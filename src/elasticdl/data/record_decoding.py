"""Decoding of serialized examples to fields, for readers whose records are bytes.

`example.py` decodes examples without a schema, `schema.py` with one; this module only chooses
between them.

Callers: `bytes_unit.py`, `recordio.py`, `tfrecord.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.data.example import decode_batch_schemaless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema
    from elasticdl.data.serialized import Serialized


def decode_records(
    records: Sequence[bytes] | Serialized,
    schema: Schema | None,
    name: Callable[[int], str],
) -> list[Record]:
    """Return the fields of each record.

    Args:
        records: Serialized `tf.Example`s.
        schema: The result of the user's `data_schema()`. None: decode every field as a 1-D array.
        name: Function (i) -> file and number of the i-th record, for error messages.

    Raises:
        SchemaError: A record is not an example or does not fit the schema.
    """
    if schema is None:
        return decode_batch_schemaless(records, name)
    return [*schema.decode_batch(records, name)]
