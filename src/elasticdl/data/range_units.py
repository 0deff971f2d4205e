"""Divides sources that do not offer units, such as a user's own reader, into ranges of records.

A unit is a part of a source that is read as a whole (see `units.py`); here, each range is a unit.

Callers: `unit_reader.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.units import REMOTE_UNIT_BYTES, Units, sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema
    from elasticdl.data.units import Selection, Unit

_RANGE_RECORDS = 2048
# Overhead of an array and of a dict in Python, in addition to their content.
_ARRAY_BYTES, _RECORD_BYTES = 112, 232


class ListUnit:
    """A unit with a list of records, from a source that does not offer units itself.

    Args:
        given: The records, all decoded or all serialized.
        memory_bytes: Estimated memory of the records.
    """

    def __init__(self, given: Sequence[Any], memory_bytes: int = 0) -> None:
        self.given = given
        self.memory_bytes = memory_bytes

    @staticmethod
    def records(picked: Selection, schema: Schema | None) -> list[Record]:
        """Return copies of decoded records, because callers may change theirs; see `Unit.records`.

        The schema is not used: the source has applied it already when it read the records.
        """
        del schema
        # Copies, because the caller may change them.
        return [
            {name: array.copy() for name, array in record.items()}
            for record in ListUnit.serialized(picked)
        ]

    @staticmethod
    def serialized(picked: Selection) -> list[Any]:
        """Return records as their source returned them; see `units.Unit.serialized`."""
        given = [unit.given for unit in picked.units]
        places = zip(picked.which.tolist(), picked.rows.tolist(), strict=True)
        return [given[index][row] for index, row in places]


class Ranges:
    """Reads a source in units of at most `_RANGE_RECORDS` records; implements `UnitSource`.

    Args:
        source: The records.
        serialized: Whether records are read as stored, without decoding.
    """

    def __init__(self, source: RecordSource, *, serialized: bool) -> None:
        self._source = source
        self._serialized = serialized
        self._sizes: list[int] = []
        self._record_bytes = 1

    def units(self, schema: Schema | None) -> Units:
        """Divide the records of each file into ranges of equal length; the last may be shorter.

        Reads a few records, decoded with the schema, to estimate the memory of all.
        """
        num_records = self._source.num_records
        sampled = [
            _memory_bytes(record)
            for number in sample(num_records)
            for record in self._given(number, number + 1, schema)
        ]
        self._record_bytes = -(-sum(sampled) // max(len(sampled), 1))
        length = max(1, min(_RANGE_RECORDS, REMOTE_UNIT_BYTES // self._record_bytes))
        for file in self._source.files:
            whole, rest = divmod(file.num_records, length)
            self._sizes += [length] * whole + ([rest] if rest else [])
        return Units(np.array(self._sizes, np.int64), num_records * self._record_bytes)

    @functools.cached_property
    def _firsts(self) -> list[int]:
        return [0, *np.cumsum(self._sizes).tolist()]

    def read_unit(self, index: int, schema: Schema | None) -> Unit:
        """Return the records of one range; `units` must have been called before."""
        given = self._given(self._firsts[index], self._firsts[index + 1], schema)
        return ListUnit(given, len(given) * self._record_bytes)

    def _given(self, start: int, stop: int, schema: Schema | None) -> Sequence[Any]:
        if self._serialized:
            return self._source.read_bytes(start, stop)
        return self._source.read_records(start, stop, schema)


def _memory_bytes(record: Any) -> int:
    if isinstance(record, bytes):
        return len(record) + 1
    return _RECORD_BYTES + sum(_ARRAY_BYTES + int(array.nbytes) for array in record.values())
