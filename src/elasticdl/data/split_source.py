"""The two sides of a validation split as sources: the records to train on, and those held out.

    all records --split_records--> training, validation: views that number their records from 0

A view keeps no records. It reads the units of its source that contain the requested records, and
decodes only these. `split.py` decides which record is on which side.

Callers: `engines/record_data.py`, `engines/training_context.py`, `engines/inference.py`,
`evaluation/record_report.py`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elasticdl.data.split import SplitNumbering
from elasticdl.data.unit_reader import UnitReader
from elasticdl.data.units import Selection, Units, UnitSource
from elasticdl.data.wording import counted
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.record_source import RecordFile, RecordSource
    from elasticdl.data.schema import Schema
    from elasticdl.data.split import Ints
    from elasticdl.data.units import Unit

# Units read at once for a range: one, or several so that remote requests overlap.
_LOCAL_UNITS, _REMOTE_UNITS = 1, 16

# Small data is read once. Of larger data, ranges are read in order, so only the unit read last is
# needed again.
_CACHE_BYTES = 16 << 20


class SplitSource:
    """The training or the held-out records of a split; implements `RecordSource`.

    Args:
        source: All records.
        numbering: Determines which records are on this side.

    Attributes:
        source: All records.
        numbering: Converts between record numbers of this side and of all records.
    """

    def __init__(self, source: RecordSource, numbering: SplitNumbering) -> None:
        self.source = source
        self.numbering = numbering
        self._of_this_process = _Readers()

    @property
    def files(self) -> Sequence[RecordFile]:
        """All files, each with the number of its records on this side of the split."""
        return self.numbering.files

    @property
    def num_records(self) -> int:
        """Number of records on this side of the split."""
        return self.numbering.num_records

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return records `start` to `stop` (exclusive) of this side, as stored."""
        reader = self._of_this_process.reader(self.source, None, serialized=True)
        return [
            record
            for piece in _pieces(reader, self.numbering.span(start, stop))
            for record in reader.gather(piece).serialized()
        ]

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records `start` to `stop` (exclusive) of this side, decoded."""
        reader = self._of_this_process.reader(self.source, schema, serialized=False)
        return [
            record
            for piece in _pieces(reader, self.numbering.span(start, stop))
            for record in reader.gather(piece).records(0, len(piece))
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_of_this_process"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _of_this_process=_Readers())


class SplitUnits(SplitSource):
    """One side of a split, for a source that is read in units; see `units.UnitSource`."""

    source: Any

    def units(self, schema: Schema | None) -> Units:
        """Return the units of the source; their sizes only count records on this side of the split.

        The estimated memory is that of whole units, because whole units are kept in memory.
        """
        whole: Units = self.source.units(schema)
        ends = self.numbering.num_before(np.cumsum(whole.sizes))
        return Units(np.diff(ends, prepend=0), whole.memory_bytes, whole.remote)

    def read_unit(self, index: int, schema: Schema | None) -> SplitUnit:
        """Return a unit's records on this side of the split; see `units.UnitSource`."""
        firsts = self._of_this_process.firsts(self.source, schema)
        first, stop = firsts[index], firsts[index + 1]
        unit = self.source.read_unit(index, schema)
        return SplitUnit(unit, self.numbering.chosen(first, stop) - first)

    def joined(self, units: Iterable[SplitUnit], memory_bytes: int) -> SplitUnit | None:
        """Join all units into one, from which records are picked faster; see `UnitSource`.

        Returns None if the source cannot join its units.
        """
        join = getattr(self.source, "joined", None)
        whole = None if join is None else join((each.unit for each in units), memory_bytes)
        if whole is None:
            return None
        return SplitUnit(whole, self.numbering.chosen(0, self.source.num_records))


@dataclass(frozen=True, eq=False)
class SplitUnit:
    """The records of a unit that are on one side of a split; see `units.Unit`.

    Attributes:
        unit: The unit, with the records of both sides.
        rows: int64, the numbers within the unit of the records on this side, ascending.
    """

    unit: Unit
    rows: Ints

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole unit and of the array `rows`, in bytes."""
        return self.unit.memory_bytes + int(self.rows.nbytes)

    @staticmethod
    def records(picked: Selection, schema: Schema | None) -> list[Record]:
        """Decode records of one or more units; see `units.Unit.records`."""
        found: list[Record] = picked.units[0].unit.records(_in_whole_units(picked), schema)
        return found

    @staticmethod
    def serialized(picked: Selection) -> list[bytes]:
        """Return records of one or more units as stored; see `units.Unit.serialized`."""
        found: list[bytes] = picked.units[0].unit.serialized(_in_whole_units(picked))
        return found


class SplitRecords(NamedTuple):
    """The two sides of a split.

    Attributes:
        training: The records to train on.
        validation: The records held out.
    """

    training: SplitSource
    validation: SplitSource


def split_records(source: RecordSource, share: float) -> SplitRecords:
    """Return the two sides of a validation split.

    Args:
        source: All records.
        share: Share of them that is held out, more than 0 and less than 1.

    Raises:
        UsageError: One side has no record.
    """
    kind = SplitUnits if isinstance(source, UnitSource) else SplitSource
    sides = SplitRecords(
        *(kind(source, SplitNumbering(source.files, share, held_out=out)) for out in (False, True))
    )
    empty = next((name for name, side in sides._asdict().items() if not side.num_records), None)
    if empty is not None:
        raise UsageError(
            f"--validation_split={share:g}: no record is left for {empty}; of "
            f"{counted(source.num_records, 'record')} in {source.files[0].uri}"
            f"{', ...' if len(source.files) > 1 else ''}, {sides.training.num_records:,} are for "
            f"training and {sides.validation.num_records:,} for validation. Use another share, or "
            "write the two sides to files with `elasticdl data split`, which counts exactly."
        )
    return sides


def whole(source: RecordSource) -> RecordSource:
    """Return the source with all records, if `source` is one side of a validation split.

    Any other source is returned unchanged. Callers use it for what concerns the files as a whole,
    such as the names of classes or whether the data has changed.
    """
    return source.source if isinstance(source, SplitSource) else source


def runs_in_whole(source: RecordSource, start: int, stop: int) -> list[tuple[int, int]]:
    """Convert a range of records of one side of a split to ranges of the source of all records.

    Reports need these numbers: they name a record by its file and its number among all records of
    the file.

    Args:
        source: One side of a split. For any other source, the result is the given range alone.
        start: First record, numbered in `source`.
        stop: One past the last record.

    Returns:
        Ranges (start, stop) of consecutive records, numbered among all records.
    """
    if not isinstance(source, SplitSource):
        return [(start, stop)]
    numbers = source.numbering.span(start, stop)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


class _Readers:
    """Caches, per schema, the reader of a source and the number of each unit's first record."""

    def __init__(self) -> None:
        self._readers: dict[tuple[Schema | None, bool], UnitReader] = {}
        self._firsts: dict[Schema | None, list[int]] = {}
        self._lock = threading.Lock()

    def reader(
        self, source: RecordSource, schema: Schema | None, *, serialized: bool
    ) -> UnitReader:
        with self._lock:
            key = (schema, serialized)
            if key not in self._readers:
                self._readers[key] = UnitReader(
                    source, schema, serialized=serialized, cache_bytes=_CACHE_BYTES
                )
            return self._readers[key]

    def firsts(self, source: UnitSource, schema: Schema | None) -> list[int]:
        with self._lock:
            if schema not in self._firsts:
                sizes = source.units(schema).sizes
                self._firsts[schema] = [0, *np.cumsum(sizes).tolist()]
            return self._firsts[schema]


def _pieces(reader: UnitReader, numbers: Ints) -> Iterator[Ints]:
    """Split record numbers into pieces that are read one after the other.

    Each piece needs only a few units in memory, however long the requested range is.

    Args:
        reader: Reader of the records.
        numbers: Numbers of the records, ascending.
    """
    most = _REMOTE_UNITS if reader.units.remote else _LOCAL_UNITS
    groups = np.searchsorted(np.cumsum(reader.units.sizes), numbers, "right") // most
    if len(numbers):
        yield from np.split(numbers, np.flatnonzero(np.diff(groups)) + 1)


def _in_whole_units(picked: Selection) -> Selection:
    rows = np.empty_like(picked.rows)
    for index, places in picked.by_unit():
        rows[places] = picked.units[index].rows[picked.rows[places]]
    return picked._replace(units=[each.unit for each in picked.units], rows=rows)
