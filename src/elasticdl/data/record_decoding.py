"""From serialized examples to fields, for the readers whose records are bytes.

What an example is knows `example.py`, what a field should be knows `schema.py`; here only the
choice between them is made.

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
        schema: What the user's `data_schema()` says; None decodes what the record says of
            itself, every field as a 1-D array.
        name: Says which file and record the i-th of them is, for error messages.

    Raises:
        SchemaError: A record is no example or does not fit the schema.
    """
    if schema is None:
        return decode_batch_schemaless(records, name)
    return [*schema.decode_batch(records, name)]
