"""Holds units of serialized records in memory, and picks records from them to decode.

A unit is a range of records that is read as a whole (`units.py`). Picked records of equal length
are copied into one array and decoded there: a `bytes` object for each of them would cost more than
the copy. If all records fit into memory, the units are joined into one as they are read: each
minibatch has records from most units, and handling a thousand units would take longer than handling
the records.

Callers: `recordio_chunk.py`, `recordio.py`, `tfrecord.py`.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from elasticdl.data.record_decoding import decode_records
from elasticdl.data.serialized import scratch_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema
    from elasticdl.data.units import Ints, Selection

    Array: TypeAlias = np.ndarray[Any, Any]

# Larger blocks would leave the processor's cache between being read and being written.
_PICKED_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class BytesUnit:
    """A unit of serialized records in memory; implements `units.Unit`.

    Record i is `memory[starts[i]:stops[i]]`.
    """

    memory: Any
    starts: Ints
    stops: Ints

    INDEX_BYTES: ClassVar[int] = 16

    @property
    def payload_bytes(self) -> int:
        """Number of bytes from the start of the first record to the end of the last one."""
        return int(self.stops[-1] - self.starts[0]) if len(self.starts) else 0

    @property
    def memory_bytes(self) -> int:
        """Size of the payload and of the positions of the records, in bytes."""
        return self.payload_bytes + self.INDEX_BYTES * len(self.starts)

    @staticmethod
    def joined(units: Iterable[BytesUnit], memory_bytes: int) -> BytesUnit:
        """Join the records of several units into one unit.

        Args:
            units: The units; each is released before the next one is read.
            memory_bytes: Estimated size of all their records, so that memory is allocated once. A
                low estimate only costs an additional copy.
        """
        # Untouched memory costs nothing. No large pages: each page is touched for the first time
        # only once, and finding large pages in fragmented memory can take longer than reading.
        memory = fresh_memory(memory_bytes + memory_bytes // 8, large_pages=False)
        end = 0
        starts, stops = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for unit in units:
            size_bytes = unit.payload_bytes
            if end + size_bytes > len(memory):
                larger = fresh_memory(2 * (end + size_bytes), large_pages=False)
                _copy(memory, 0, end, larger, 0)
                memory = larger
            if size_bytes:
                begin = int(unit.starts[0])
                _copy(unit.memory, begin, begin + size_bytes, memory, end)
                starts.append(unit.starts + (end - begin))
                stops.append(unit.stops + (end - begin))
                end += size_bytes
            else:
                starts.append(np.zeros_like(unit.starts))
                stops.append(np.zeros_like(unit.stops))
            # The next unit is read into its memory.
            del unit
        return BytesUnit(memory, np.concatenate(starts), np.concatenate(stops))

    @staticmethod
    def records(picked: Selection, schema: Schema | None) -> list[Record]:
        """Decode records of one or more units; see `units.Unit.records`."""
        return decode_records(_PickedRecords(picked), schema, picked.name)

    @staticmethod
    def serialized(picked: Selection) -> list[bytes]:
        """Return records of one or more units as stored; see `units.Unit.serialized`."""
        return [*_PickedRecords(picked)]


class _PickedRecords:
    """Records picked from `BytesUnit`s, each copied when it is read; implements `Serialized`.

    Args:
        picked: The records; all units are `BytesUnit`s.
    """

    def __init__(self, picked: Selection) -> None:
        self._memory = [unit.memory for unit in picked.units]
        self._which = picked.which
        # Ordered by unit: the records of one unit are copied together.
        self._order = np.argsort(picked.which, kind="stable")
        starts, stops = np.empty_like(picked.rows), np.empty_like(picked.rows)
        which, rows = picked.which[self._order], picked.rows[self._order]
        for index, here in _runs(which):
            unit = picked.units[index]
            starts[here], stops[here] = unit.starts[rows[here]], unit.stops[rows[here]]
        self._starts, self._stops = np.empty_like(starts), np.empty_like(stops)
        self._starts[self._order], self._stops[self._order] = starts, stops

    def __len__(self) -> int:
        return len(self._which)

    def __getitem__(self, row: int) -> bytes:
        cut: bytes = self._memory[self._which[row]][self._starts[row] : self._stops[row]]
        return cut

    def __iter__(self) -> Iterator[bytes]:
        memory = self._memory
        cuts = zip(self._which.tolist(), self._starts.tolist(), self._stops.tolist(), strict=True)
        return (memory[index][start:stop] for index, start, stop in cuts)

    def blocks(self, smallest: int) -> Iterator[tuple[list[int], Array | None]]:
        """Yield the records grouped by length; see `serialized.Serialized.blocks`."""
        lengths = (self._stops - self._starts)[self._order]
        for length in np.unique(lengths).tolist():
            rows = self._order[lengths == length]
            if len(rows) < smallest:
                yield rows.tolist(), None
                continue
            with scratch_buffer(len(rows), length) as block:
                starts = self._starts[rows]
                for index, here in _runs(self._which[rows], _PICKED_AT_ONCE):
                    block[here] = _windows(self._memory[index], length)[starts[here]]
                yield rows.tolist(), block


def _runs(which: Ints, most: int = sys.maxsize) -> Iterator[tuple[int, slice]]:
    """Split records that are sorted by unit into runs from the same unit.

    Args:
        which: Number of the unit that contains each record, sorted.
        most: Maximum length of a run; longer ones are split.

    Yields:
        The number of the unit, and the positions of the run's records as a slice.
    """
    borders = [*np.flatnonzero(np.diff(which, prepend=-1)).tolist(), len(which)]
    numbers = which[borders[:-1]].tolist()
    for number, (start, stop) in zip(numbers, pairwise(borders), strict=True):
        for first in range(start, stop, most):
            yield number, slice(first, min(first + most, stop))


def _windows(memory: Any, length: int) -> Array:
    """Return a view of memory as overlapping rows: row i is the `length` bytes from byte i.

    So NumPy can copy many records of one length at once, with their positions as row numbers.
    """
    return np.ndarray((len(memory) - length + 1, length), np.uint8, memory, strides=(1, 1))


def fresh_memory(size_bytes: int, *, large_pages: bool = True) -> mmap.mmap:
    """Allocate writable memory that is not shared with forked processes.

    It is an `mmap` object. Slicing it copies the bytes and returns `bytes`, not a view.

    Args:
        size_bytes: Size of the memory.
        large_pages: Whether to request large pages. With them, the first access of the memory
            causes fewer page faults, but the kernel may take long to find such pages.
    """
    # Private: after a fork, both processes read into it independently.
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large_pages:
        with contextlib.suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _copy(source: Any, start: int, stop: int, target: mmap.mmap, at: int) -> None:
    with memoryview(source) as given, memoryview(target) as room:
        room[at : at + stop - start] = given[start:stop]
