"""Records in any order: read unit by unit, kept as long as there is room, decoded when needed.

A *unit* is the least of a source that is worth reading at once: a chunk of RecordIO, a row group of
Parquet, a stretch of rows of CSV. Shuffled records lie all over a source; reading them one by one
would read, check and decompress a unit for each of them.

    numbers of records --gather--> units, each read once --Gathered.records--> decoded, a few at
                                   ^                                          a time
                                   `-- the units used last are kept, `CACHE_BYTES` of them

Readers offer their units by the methods of `UnitSource`; any other `RecordSource` is read in ranges
of at most `_RANGE_RECORDS` records. Which records are wanted is not known here.

Laws, held by `tests/contracts/test_record_source.py` for every reader:

* Gathered records are those that `read_records` and `read_bytes` return, whatever their order.
* `units` reads no more than a sample, and its sizes add up to `num_records`.

Callers: `engines/record_data.py`, `engines/cut.py`.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

import numpy as np
import numpy.typing as npt

from elasticdl.data.file_ranges import Numbering
from elasticdl.data.record_decoding import decode_records
from elasticdl.data.stored_file import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema

Ints: TypeAlias = npt.NDArray[np.int64]

CACHE_BYTES = 256 * 2**20
"""Records that a process keeps in memory of each source it reads in a shuffled order."""

LOCAL_UNIT_BYTES = 256 << 10
"""Least that is worth reading at once where the format has no units: 0.1 ms of a disk."""

REMOTE_UNIT_BYTES = 4 << 20
"""The same where each request waits for an answer."""

# An answer of an object store takes tens of milliseconds, most of them waiting.
_PARALLEL_READS = 16
_RANGE_RECORDS = 2048
_SAMPLES = 5
# What Python needs for an array and for a dict, beside what is in them.
_ARRAY_BYTES, _RECORD_BYTES = 112, 232


class Units(NamedTuple):
    """How the records of a source lie in units.

    Attributes:
        sizes: int64 [units], records of each unit in stored order.
        memory_bytes: What all units together take in memory, an estimate.
        remote: Reading a unit is mostly waiting.
    """

    sizes: Ints
    memory_bytes: int
    remote: bool = False


class Unit(Protocol):
    """A unit in memory. All units of a source are of one class."""

    @property
    def memory_bytes(self) -> int:
        """How much memory it takes."""
        ...

    @staticmethod
    def records(picked: Picked, schema: Schema | None) -> list[Record]:
        """Return the records picked from some units, decoded."""
        ...

    @staticmethod
    def serialized(picked: Picked) -> list[bytes]:
        """Return the records picked from some units, as `RecordSource.read_bytes` does."""
        ...


class Picked(NamedTuple):
    """Some records of some units, in an order.

    Attributes:
        units: Where they are.
        which: int64 [records], index into `units`.
        rows: int64 [records], number within its unit.
        name: What to call the i-th of them in a message.
    """

    units: Sequence[Any]
    which: Ints
    rows: Ints
    name: Callable[[int], str]

    def by_unit(self) -> list[tuple[int, Ints]]:
        """Return each unit's index with the places of its records among the picked ones."""
        if not len(self.which):
            return []
        order = np.argsort(self.which, kind="stable")
        starts = np.flatnonzero(np.diff(self.which[order], prepend=-1))
        groups = np.split(order, starts[1:])
        return list(zip(self.which[order[starts]].tolist(), groups, strict=True))


@runtime_checkable
class UnitSource(Protocol):
    """A `RecordSource` that is read unit by unit."""

    def units(self, schema: Schema | None) -> Units:
        """Return how the records lie in units, and what these take when read by a schema."""
        ...

    def read_unit(self, index: int, schema: Schema | None) -> Unit:
        """Return a unit; called from several threads.

        Raises:
            CorruptDataError: It is damaged.
            SchemaError: A cell of a table is not what the schema says.
        """
        ...


@dataclass(frozen=True, eq=False)
class BytesUnit:
    """Serialized records: record i is `memory[starts[i]:stops[i]]`."""

    memory: Any
    starts: Ints
    stops: Ints

    INDEX_BYTES: ClassVar[int] = 16

    @property
    def payload_bytes(self) -> int:
        """How much lies between the first record and the end of the last one."""
        return int(self.stops[-1] - self.starts[0]) if len(self.starts) else 0

    @property
    def memory_bytes(self) -> int:
        """The payload, and where each record lies."""
        return self.payload_bytes + self.INDEX_BYTES * len(self.starts)

    @staticmethod
    def records(picked: Picked, schema: Schema | None) -> list[Record]:
        """See `Unit`."""
        return decode_records(BytesUnit.serialized(picked), schema, picked.name)

    @staticmethod
    def serialized(picked: Picked) -> list[bytes]:
        """See `Unit`."""
        starts, stops = np.empty_like(picked.rows), np.empty_like(picked.rows)
        for index, places in picked.by_unit():
            unit, rows = picked.units[index], picked.rows[places]
            starts[places], stops[places] = unit.starts[rows], unit.stops[rows]
        memory = [unit.memory for unit in picked.units]
        cuts = zip(picked.which.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [memory[index][start:stop] for index, start, stop in cuts]


class ListUnit:
    """Records as a source without units gave them out.

    Args:
        given: Decoded or serialized records.
        memory_bytes: How much memory they take.
    """

    def __init__(self, given: Sequence[Any], memory_bytes: int = 0) -> None:
        self.given = given
        self.memory_bytes = memory_bytes

    @staticmethod
    def records(picked: Picked, schema: Schema | None) -> list[Record]:
        """See `Unit`."""
        del schema
        # Whoever gets one may change it.
        return [
            {name: array.copy() for name, array in record.items()}
            for record in ListUnit.serialized(picked)
        ]

    @staticmethod
    def serialized(picked: Picked) -> list[Any]:
        """See `Unit`."""
        given = [unit.given for unit in picked.units]
        places = zip(picked.which.tolist(), picked.rows.tolist(), strict=True)
        return [given[index][row] for index, row in places]


class Gathered:
    """Records of a source in an order, in memory and not decoded yet.

    Args:
        units: Where they are.
        which: Index into `units` of each record.
        rows: Number of each record within its unit.
        name: What to call the i-th record in a message.
        schema: How they are decoded.
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
        """Return the `start`-th to the `stop`-th (exclusive) of them, decoded.

        Raises:
            SchemaError: A record does not fit the schema; names file, record and field.
        """
        return (
            self._units[0].records(self._picked(start, stop), self._schema) if self._units else []
        )

    def serialized(self) -> list[bytes]:
        """Return all of them as stored; rows of tables as serialized `tf.Example`s."""
        if not self._units:
            return []
        return self._units[0].serialized(self._picked(0, len(self._rows)))

    def _picked(self, start: int, stop: int) -> Picked:
        chosen = slice(start, stop)
        return Picked(
            self._units, self._which[chosen], self._rows[chosen], lambda i: self._name(start + i)
        )


class UnitReader:
    """Reads records of a source in any order; may be used by several threads.

    Where all units fit into `CACHE_BYTES`, each is read once. Else those used last are kept.

    Args:
        source: The records.
        schema: How they are decoded.
        serialized: They are wanted as stored, and `schema` is None.
    """

    def __init__(
        self, source: RecordSource, schema: Schema | None, *, serialized: bool = False
    ) -> None:
        self.source = source
        self._schema = schema
        offers = isinstance(source, UnitSource)
        self._units_of: Any = source if offers else _Ranges(source, serialized=serialized)
        self._kept: OrderedDict[int, Unit] = OrderedDict()
        self._kept_bytes = 0
        self._whole: Unit | None = None
        self._lock = threading.Lock()

    @functools.cached_property
    def units(self) -> Units:
        """How the records lie in units.

        Raises:
            DataError: The sample that this is judged by cannot be read.
        """
        found: Units = self._units_of.units(self._schema)
        return found

    @functools.cached_property
    def numbering(self) -> Numbering:
        """Names of the records."""
        return Numbering(self.source.files)

    @functools.cached_property
    def _firsts(self) -> Ints:
        return np.concatenate(([0], np.cumsum(self.units.sizes)))

    @property
    def _fits(self) -> bool:
        return self.units.memory_bytes <= CACHE_BYTES

    @functools.cached_property
    def _most_bytes(self) -> int:
        # What was found to fit is an estimate. Where it is a little too low, some more memory is
        # better than reading all of it again and again.
        return 2 * CACHE_BYTES if self._fits else CACHE_BYTES

    def gather(self, numbers: Ints) -> Gathered:
        """Read records, each unit they lie in once.

        Args:
            numbers: int64, in any order.

        Raises:
            CorruptDataError: A unit is damaged.
            SchemaError: A cell of a table is not what the schema says.
        """

        def name(i: int) -> str:
            return self.numbering.name(int(numbers[i]))

        if self._fits and self._whole is None and hasattr(self._units_of, "joined"):
            self._join()
        if self._whole is not None:
            which = np.zeros(len(numbers), np.int64)
            return Gathered([self._whole], which, numbers, name, self._schema)
        unit_of = np.searchsorted(self._firsts, numbers, "right") - 1
        touched, which = np.unique(unit_of, return_inverse=True)

        units = self._read(touched.tolist())
        return Gathered(units, which, numbers - self._firsts[unit_of], name, self._schema)

    def _join(self) -> None:
        """Read all units and make one of them: of a table, rows are picked far quicker then."""
        units = self._read(range(len(self.units.sizes)))
        whole = self._units_of.joined(units)
        if whole is None:
            return
        with self._lock:
            self._whole = whole
            self._kept.clear()

    def _read(self, indices: Sequence[int]) -> list[Unit]:
        with self._lock:
            found = {index: self._kept[index] for index in indices if index in self._kept}
        missing = [index for index in indices if index not in found]
        if self.units.remote and len(missing) > 1:
            with ThreadPoolExecutor(_PARALLEL_READS) as threads:
                found.update(zip(missing, threads.map(self._read_one, missing), strict=True))
        else:
            found.update((index, self._read_one(index)) for index in missing)
        with self._lock:
            for index, unit in found.items():
                self._keep(index, unit)
        return [found[index] for index in indices]

    def _read_one(self, index: int) -> Unit:
        unit: Unit = self._units_of.read_unit(index, self._schema)
        return unit

    def _keep(self, index: int, unit: Unit) -> None:
        """Note that a unit was used last, and let go of those used before there was too much."""
        if index not in self._kept:
            self._kept_bytes += unit.memory_bytes
        self._kept[index] = unit
        self._kept.move_to_end(index)
        while self._kept_bytes > self._most_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.memory_bytes


class _Ranges:
    """Ranges of records as units, of a source that has none.

    Args:
        source: The records.
        serialized: They are wanted as stored.
    """

    def __init__(self, source: RecordSource, *, serialized: bool) -> None:
        self._source = source
        self._serialized = serialized
        self._sizes: list[int] = []
        self._record_bytes = 1

    def units(self, schema: Schema | None) -> Units:
        """See `UnitSource`."""
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
        """See `UnitSource`."""
        given = self._given(self._firsts[index], self._firsts[index + 1], schema)
        return ListUnit(given, len(given) * self._record_bytes)

    def _given(self, start: int, stop: int, schema: Schema | None) -> Sequence[Any]:
        if self._serialized:
            return self._source.read_bytes(start, stop)
        return self._source.read_records(start, stop, schema)


def sample(count: int) -> list[int]:
    """Return a few numbers below a count, spread evenly.

    Example:
        >>> sample(2), sample(100)
        ([0, 1], [10, 30, 50, 70, 90])
    """
    number = min(count, _SAMPLES)
    return [(2 * i + 1) * count // (2 * number) for i in range(number)]


def unit_bytes(uris: Sequence[str]) -> int:
    """Return how much of some files is worth reading at once."""
    return REMOTE_UNIT_BYTES if is_remote(uris) else LOCAL_UNIT_BYTES


def is_remote(uris: Sequence[str]) -> bool:
    """Return whether some files are read through requests."""
    return any(local_path(uri) is None for uri in uris)


def _memory_bytes(record: Any) -> int:
    if isinstance(record, bytes):
        return len(record) + 1
    return _RECORD_BYTES + sum(_ARRAY_BYTES + int(array.nbytes) for array in record.values())
