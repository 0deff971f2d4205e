"""Units: the interface through which readers offer records in any order.

A *unit* is the smallest part of a source that is worth reading by itself: a chunk of RecordIO, a
row group of Parquet, a range of rows of CSV. It is read as a whole. Shuffled records are spread
over the whole source; reading them one by one would read, verify and decompress a unit for each of
them.

Readers offer their units through the methods of `UnitSource`; any other `RecordSource` is read in
ranges (`range_units.py`). `unit_reader.py` reads and caches units.

Contract, checked for every reader by `tests/contracts/test_record_source.py`: `units` reads only a
sample, and its sizes add up to `num_records`.

Callers: the readers in this folder, `unit_reader.py`, `engines/shard_sizes.py`.
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
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema

Ints: TypeAlias = npt.NDArray[np.int64]

CACHE_BYTES = 256 * 2**20
"""Memory in which a process caches records, for each source it reads in a shuffled order."""

LOCAL_UNIT_BYTES = 256 << 10
"""Smallest amount worth reading at once if the format has no units; about 0.1 ms of disk time."""

REMOTE_UNIT_BYTES = 4 << 20
"""The same for remote files, where each request waits for a response."""

_SAMPLES = 5


class Units(NamedTuple):
    """Division of the records of a source into units, the parts that are read as a whole.

    Attributes:
        sizes: int64 [units], number of records in each unit; units are in stored order.
        memory_bytes: Estimated memory of all units together.
        remote: Whether the files are on remote storage, where most time is spent waiting for
            responses.
    """

    sizes: Ints
    memory_bytes: int
    remote: bool = False


class Unit(Protocol):
    """A unit (a part of a source read as a whole) in memory, from which records are picked.

    All units of a source are of one class. `records` and `serialized` are static methods: the
    records that they return may come from several units.
    """

    @property
    def memory_bytes(self) -> int:
        """Memory of the unit, in bytes."""
        ...

    @staticmethod
    def records(picked: Selection, schema: Schema | None) -> list[Record]:
        """Decode records of one or more units.

        Args:
            picked: The records, in the order of the result.
            schema: The result of the user's `data_schema()`. None: decode all fields.

        Raises:
            SchemaError: A record does not fit the schema.
        """
        ...

    @staticmethod
    def serialized(picked: Selection) -> list[bytes]:
        """Return records of one or more units as `RecordSource.read_bytes` returns them.

        Args:
            picked: The records, in the order of the result.
        """
        ...


class Selection(NamedTuple):
    """Records picked from units, in a given order.

    Attributes:
        units: The units that contain the records; all of one class.
        which: int64 [records], index into `units` of each record.
        rows: int64 [records], number of each record within its unit.
        name: Function (i) -> name of the i-th picked record (file and number), for a message.
    """

    units: Sequence[Any]
    which: Ints
    rows: Ints
    name: Callable[[int], str]

    def by_unit(self) -> list[tuple[int, Ints]]:
        """Group the records by unit.

        Returns:
            For each unit with picked records: its index in `units`, and the positions of these
            records in the selection.
        """
        if not len(self.which):
            return []
        order = np.argsort(self.which, kind="stable")
        starts = np.flatnonzero(np.diff(self.which[order], prepend=-1))
        groups = np.split(order, starts[1:])
        return list(zip(self.which[order[starts]].tolist(), groups, strict=True))


@runtime_checkable
class HasDecodedSize(Protocol):
    """A record source whose records, such as images, take much more memory decoded than stored."""

    def decoded_bytes(self) -> int:
        """Return the estimated memory of a record that is decoded without a schema, in bytes."""
        ...


@runtime_checkable
class UnitSource(Protocol):
    """A `RecordSource` that is read unit by unit.

    It may also have a method `joined(units, memory_bytes)`, which joins all units into one, from
    which records are picked faster, or returns None if they cannot be joined. It is called if all
    records fit into memory, with all units and the estimate of their memory in bytes.
    """

    def units(self, schema: Schema | None) -> Units:
        """Divide the records into units, and estimate the memory that they take.

        Args:
            schema: Schema with which the units will be read. None: all fields are read.
        """
        ...

    def read_unit(self, index: int, schema: Schema | None) -> Unit:
        """Read a unit; called from several threads.

        Args:
            index: Number of the unit, counted over all files.
            schema: Schema with which the records will be decoded; fields that it does not name
                may be left out.

        Raises:
            CorruptDataError: The unit is damaged.
            SchemaError: A cell of a table does not fit the schema.
        """
        ...


def decoded_bytes(source: RecordSource, schema: Schema | None) -> int:
    """Return the estimated memory of a decoded record, in bytes; 0 if it is not known.

    Callers take the larger one of this number and of the size as stored. With a schema, the result
    is the size of its fields, without those of varying length. Without one, it is what the source's
    method `HasDecodedSize.decoded_bytes` returns, or 0 if the source lacks this method.

    Args:
        source: The records.
        schema: Schema to decode them with; None for none.

    Raises:
        DataError: The sample that an estimate is based on cannot be read.
    """
    if schema is not None:
        fixed = [field for field in schema.fields if not field.varies]
        return sum(field.size * field.dtype.itemsize for field in fixed)
    return source.decoded_bytes() if isinstance(source, HasDecodedSize) else 0


def sample(count: int) -> list[int]:
    """Return the indices of a small, evenly spread sample of `count` items.

    Readers estimate the memory of all units from such a sample of records or units.

    Example:
        >>> sample(2), sample(100)
        ([0, 1], [10, 30, 50, 70, 90])
    """
    number = min(count, _SAMPLES)
    return [(2 * i + 1) * count // (2 * number) for i in range(number)]


def unit_bytes(uris: Sequence[str]) -> int:
    """Return the minimum size of a unit in bytes, for formats without units of their own.

    It is larger if a file is remote, because each read then waits for a response.
    """
    return REMOTE_UNIT_BYTES if is_remote(uris) else LOCAL_UNIT_BYTES


def is_remote(uris: Sequence[str]) -> bool:
    """Return whether any of the files is on remote storage."""
    return any(local_path(uri) is None for uri in uris)
