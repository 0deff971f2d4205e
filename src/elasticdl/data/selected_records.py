"""A record source that selects records of another one, and keeps them in memory once read.

Callers: the federated engine, to divide one data set among parties, and to read the records of a
simulated party only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.record_source import HasClassNames, RecordFile

if TYPE_CHECKING:
    from elasticdl.data.batch import Record
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema


class SelectedRecords:
    """A selection of the records of another source; implements `RecordSource`.

    The first read in each form (serialized, or decoded with some schema) reads all selected records
    and keeps them in memory.

    Args:
        source: The other source.
        record_numbers: Record i of this selection is record `record_numbers[i]` of `source`.
        name: Name of this selection, for messages.
    """

    def __init__(self, source: RecordSource, record_numbers: Sequence[int], name: str) -> None:
        self._source = source
        self._numbers = np.asarray(record_numbers, np.int64)
        self._name = name
        self._bytes: list[bytes] | None = None
        self._records: dict[Schema | None, list[Record]] = {}

    @property
    def files(self) -> Sequence[RecordFile]:
        """A single placeholder file for all selected records, named after the selection."""
        first = self._source.files[0].uri
        return [RecordFile(f"{first} ({self._name})", self.num_records)]

    @property
    def num_records(self) -> int:
        """Number of selected records."""
        return len(self._numbers)

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes of the whole source; see `record_source.HasClassNames`."""
        return self._source.classes if isinstance(self._source, HasClassNames) else ()

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return records `start` to `stop` (exclusive) of the selection, as stored."""
        self._check(start, stop)
        if self._bytes is None:
            self._bytes = [
                record for run in self._runs() for record in self._source.read_bytes(*run)
            ]
        return self._bytes[start:stop]

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records `start` to `stop` (exclusive) of the selection, decoded."""
        self._check(start, stop)
        if schema not in self._records:
            self._records[schema] = [
                record for run in self._runs() for record in self._source.read_records(*run, schema)
            ]
        # Copies, because the caller may change them.
        return [
            {name: array.copy() for name, array in record.items()}
            for record in self._records[schema][start:stop]
        ]

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield the selected numbers as ranges (start, stop) of consecutive numbers."""
        ends = np.flatnonzero(np.diff(self._numbers) != 1) + 1
        for run in np.split(self._numbers, ends):
            if run.size:
                yield int(run[0]), int(run[-1]) + 1

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_records:
            raise IndexError(f"{start} to {stop} of {self.num_records} records.")
