"""Unit reader: reads records in any order by reading whole units, which it caches.

    record numbers --gather--> units, each read once --Gathered.records--> decoded, a few at a time
                               ^
                               `-- the units used last are kept, `CACHE_BYTES` of them

A unit is a part of a source that is read as a whole, such as a chunk of RecordIO; see `units.py`.

Contract, checked for every reader by `tests/contracts/test_record_source.py`: gathered records are
those that `read_records` and `read_bytes` return, whatever their order.

Callers: `engines/record_data.py`, `split_source.py`.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data import units as data_units
from elasticdl.data.file_ranges import numbering_of
from elasticdl.data.range_units import Ranges
from elasticdl.data.units import Selection, UnitSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.file_ranges import Numbering
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema
    from elasticdl.data.units import Ints, Unit, Units

# A response of an object store takes tens of milliseconds, most of them waiting.
_PARALLEL_READS = 16
_READ_AHEAD = 4 * _PARALLEL_READS


class Gathered:
    """Records of a source in the order in which they were requested, in memory, not decoded yet.

    Args:
        units: The units (parts of the source that are read as a whole) that contain the records.
        which: Index into `units` of each record, in the requested order.
        rows: Number of each record within its unit, in the requested order.
        name: Function (i) -> name of the i-th requested record (file and number), for messages.
        schema: Schema to decode them with. None: decode all fields.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        which: Ints,
        rows: Ints,
        name: Callable[[int], str],
        schema: Schema | None,
    ) -> None:
        self._units = units
        self._which = which
        self._rows = rows
        self._name = name
        self._schema = schema

    def records(self, start: int, stop: int) -> list[Record]:
        """Decode a slice of the requested records.

        Args:
            start: Position of the first record in the requested order, from 0.
            stop: Position after the last one.

        Raises:
            SchemaError: A record does not fit the schema; the message names file, record and field.
        """
        return (
            self._units[0].records(self._picked(start, stop), self._schema) if self._units else []
        )

    def serialized(self) -> list[bytes]:
        """Return all records, in the requested order, as they are stored.

        Rows of tables are returned as serialized `tf.Example`s.
        """
        if not self._units:
            return []
        return self._units[0].serialized(self._picked(0, len(self._rows)))

    def _picked(self, start: int, stop: int) -> Selection:
        chosen = slice(start, stop)
        return Selection(
            self._units, self._which[chosen], self._rows[chosen], lambda i: self._name(start + i)
        )


class UnitReader:
    """Reads records of a source in any order; may be used by several threads.

    If all units fit into `CACHE_BYTES`, each is read once. Otherwise those used last are kept.

    Args:
        source: The records.
        schema: Schema to decode them with.
        serialized: Whether records are read as stored, without decoding; `schema` is then None.
        cache_bytes: Memory for units; None means `CACHE_BYTES`. The unit used last is always kept.
    """

    def __init__(
        self,
        source: RecordSource,
        schema: Schema | None,
        *,
        serialized: bool = False,
        cache_bytes: int | None = None,
    ) -> None:
        self.source = source
        self._given_cache_bytes = cache_bytes
        self._schema = schema
        offers = isinstance(source, UnitSource)
        self._units_of: Any = source if offers else Ranges(source, serialized=serialized)
        self._kept: OrderedDict[int, Unit] = OrderedDict()
        self._kept_bytes = 0
        self._whole: Unit | None = None
        self._tried_to_join = False
        self._joining = threading.Lock()
        self._lock = threading.Lock()

    @functools.cached_property
    def units(self) -> Units:
        """The division of the records into units, with an estimate of the memory of all units.

        Raises:
            DataError: The records sampled to estimate the memory cannot be read.
        """
        found: Units = self._units_of.units(self._schema)
        return found

    @functools.cached_property
    def decoded_bytes(self) -> int:
        """Estimated memory of one decoded record, in bytes; see `units.decoded_bytes`."""
        return data_units.decoded_bytes(self.source, self._schema)

    @functools.cached_property
    def numbering(self) -> Numbering:
        """Numbering of the source's records, which names records in messages."""
        return numbering_of(self.source)

    @functools.cached_property
    def _firsts(self) -> Ints:
        return np.concatenate(([0], np.cumsum(self.units.sizes)))

    @property
    def _cache_bytes(self) -> int:
        given = self._given_cache_bytes
        return data_units.CACHE_BYTES if given is None else given

    @property
    def _fits(self) -> bool:
        return self.units.memory_bytes <= self._cache_bytes

    @functools.cached_property
    def _most_bytes(self) -> int:
        # Whether the units fit is an estimate. If it is a little too low, using more memory is
        # better than reading all units again and again.
        return 2 * self._cache_bytes if self._fits else self._cache_bytes

    def gather(self, numbers: Ints) -> Gathered:
        """Read records in any order; each unit that contains some of them is read only once.

        Args:
            numbers: Record numbers, int64, in any order.

        Raises:
            CorruptDataError: A unit is damaged.
            SchemaError: A cell of a table does not fit the schema.
        """

        def name(i: int) -> str:
            return self.numbering.name(int(numbers[i]))

        if self._fits and hasattr(self._units_of, "joined"):
            self._join()
        if self._whole is not None:
            which = np.zeros(len(numbers), np.int64)
            return Gathered([self._whole], which, numbers, name, self._schema)
        unit_of = np.searchsorted(self._firsts, numbers, "right") - 1
        touched, which = np.unique(unit_of, return_inverse=True)

        units = self._read(touched.tolist())
        return Gathered(units, which, numbers - self._firsts[unit_of], name, self._schema)

    def _join(self) -> None:
        """Read all units and join them into one, from which records are picked much faster.

        Only the first call does this; a source that cannot join its units leaves them separate.
        """
        with self._joining:
            if self._tried_to_join:
                return
            self._whole = self._units_of.joined(self._each_unit(), self.units.memory_bytes)
            self._tried_to_join = True

    def _each_unit(self) -> Iterator[Unit]:
        """Yield all units of the source, in order; remote ones are read several at a time."""
        indices = range(len(self.units.sizes))
        if not self.units.remote:
            yield from map(self._read_one, indices)
            return
        with ThreadPoolExecutor(_PARALLEL_READS) as threads:
            # Not all at once: units that wait to be joined also take memory.
            for first in indices[::_READ_AHEAD]:
                yield from threads.map(self._read_one, indices[first : first + _READ_AHEAD])

    def _read(self, indices: Sequence[int]) -> list[Unit]:
        with self._lock:
            found = {index: self._kept[index] for index in indices if index in self._kept}
            # Mark them as used, so that others make room for the units read now.
            for index in found:
                self._kept.move_to_end(index)
        missing = [index for index in indices if index not in found]
        if self.units.remote and len(missing) > 1:
            with ThreadPoolExecutor(_PARALLEL_READS) as threads:
                read = [*threads.map(self._read_and_keep, missing)]
        else:
            read = [self._read_and_keep(index) for index in missing]
        found.update(zip(missing, read, strict=True))
        return [found[index] for index in indices]

    def _read_one(self, index: int) -> Unit:
        unit: Unit = self._units_of.read_unit(index, self._schema)
        return unit

    def _read_and_keep(self, index: int) -> Unit:
        unit = self._read_one(index)
        # Immediately: the units it displaces free memory for the next one.
        with self._lock:
            self._keep(index, unit)
        return unit

    def _keep(self, index: int, unit: Unit) -> None:
        """Cache a unit as the one used last; drop those used least recently, above the limit.

        The caller holds the lock.

        Args:
            index: Number of the unit.
            unit: The unit, in memory.
        """
        if index not in self._kept:
            self._kept_bytes += unit.memory_bytes
        self._kept[index] = unit
        self._kept.move_to_end(index)
        while self._kept_bytes > self._most_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.memory_bytes
