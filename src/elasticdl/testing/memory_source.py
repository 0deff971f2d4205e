"""In-memory `RecordSource`, for tests of code that reads records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticdl.data.example import decode_batch_schemaless, encode
from elasticdl.data.record_source import RecordFile

if TYPE_CHECKING:
    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema


class MemorySource:
    """A `RecordSource` over records in memory.

    Args:
        records: The records: field name -> array, for each.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = [encode(dict(record)) for record in records]

    @property
    def files(self) -> Sequence[RecordFile]:
        """One placeholder file for all records, because they are not stored in any."""
        return [RecordFile("memory", self.num_records)]

    @property
    def num_records(self) -> int:
        """Number of records."""
        return len(self._records)

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return the records `start` to `stop` (exclusive), each as a serialized `tf.Example`."""
        if not 0 <= start <= stop <= self.num_records:
            raise IndexError(f"{start} to {stop} of {self.num_records} records.")
        return self._records[start:stop]

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return the records `start` to `stop` (exclusive), decoded to arrays."""
        raw = self.read_bytes(start, stop)

        def where(i: int) -> str:
            return f"memory, record {start + i}"

        if schema is None:
            return list(decode_batch_schemaless(raw, where))
        return list(schema.decode_batch(raw, where))
