"""Units: how readers offer records that are wanted in any order.

A *unit* is the least of a source that is worth reading at once: a chunk of RecordIO, a row group of
Parquet, a stretch of rows of CSV. Shuffled records lie all over a source; reading them one by one
would read, check and decompress a unit for each of them.

Readers offer their units by the methods of `UnitSource`; any other `RecordSource` is read in ranges
(`range_units.py`). How units are read and kept knows `unit_reader.py`.

Law, held by `tests/contracts/test_record_source.py` for every reader: `units` reads no more than a
sample, and its sizes add up to `num_records`.

Callers: the readers of this folder, `unit_reader.py`, `engines/cut.py`.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

import numpy as np
import numpy.typing as npt

from elasticdl.data.stored_file import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema

Ints: TypeAlias = npt.NDArray[np.int64]

CACHE_BYTES = 256 * 2**20
"""Records that a process keeps in memory of each source it reads in a shuffled order."""

LOCAL_UNIT_BYTES = 256 << 10
"""Least that is worth reading at once where the format has no units: 0.1 ms of a disk."""

REMOTE_UNIT_BYTES = 4 << 20
"""The same where each request waits for an answer."""

_SAMPLES = 5


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
    """A `RecordSource` that is read unit by unit.

    It may have a method `joined(units, memory_bytes)`, too: units as one, None if that cannot be.
    It is called where all records fit into memory, with all units and what they take.
    """

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
