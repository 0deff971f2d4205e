"""Adapts a model file's own data reader, its `custom_data_reader`, to a `RecordSource`.

A user's reader is an object with `create_shards()`, which lists the data as (name, start, count),
and `read_records(task)`, which yields the records of the range of a shard that a task names. Here,
shards are presented as files and their records are numbered consecutively. Callers read records by
number, and the tasks are made here.
"""

from __future__ import annotations

import functools
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.example import decode_batch_schemaless
from elasticdl.data.record_source import RecordFile
from elasticdl.dialects.dialect_reader import DialectReader, call
from elasticdl.dialects.model_code import Symbol
from elasticdl.dialects.params import described, signature_of
from elasticdl.errors import DataError, DefinitionError, NoDataError

if TYPE_CHECKING:
    from elasticdl.data.batch import Record
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema

RECORDS_PER_TASK = 2048
"""Number of records per shard that is passed to a reader: 32 minibatches of 64."""


@dataclass(frozen=True)
class Metadata:
    """Column information of a reader, passed to `feed(dataset, mode, metadata)`.

    Attributes:
        column_names: Names of the columns, if records are rows.
        column_dtypes: Their dtypes by name, if known.
    """

    column_names: Sequence[str] | None = None
    column_dtypes: Mapping[str, Any] | None = None


class AbstractDataReader(ABC):
    """Interface of a user's own data reader, for data that ElasticDL cannot read by itself."""

    def __init__(self, **kwargs: Any) -> None:
        del kwargs

    @abstractmethod
    def create_shards(self) -> Any:
        """Return all shards: a list of (name, start, count), or {name: (start, count)}."""

    @abstractmethod
    def read_records(self, task: Any) -> Iterable[Any]:
        """Yield records `task.shard.start` to `task.shard.end`, exclusive, of `task.shard.name`."""

    @property
    def records_output_types(self) -> Any:
        """The TensorFlow dtype of a record; None means bytes."""
        return None

    @property
    def metadata(self) -> Any:
        """Column information to pass to `feed`."""
        return Metadata()


@dataclass(frozen=True)
class _Shard:
    name: str
    start: int
    count: int


class ReaderSource:
    """A `RecordSource` over a user's reader, with its records numbered over all shards.

    One thread reads at a time, because a user's reader may not be thread-safe.

    Args:
        reader: The user's reader.
        symbol: The function or class that created it, for errors.

    Raises:
        DefinitionError: The reader lacks a method, or `create_shards()` returned no list of shards.
        NoDataError: The reader has no records.
    """

    def __init__(self, reader: Any, symbol: Symbol) -> None:
        for method in ("create_shards", "read_records"):
            if not callable(getattr(reader, method, None)):
                raise DefinitionError(
                    f"{symbol}: {symbol.name}() returned {described(reader)} without "
                    f"{method}(). Derive it from AbstractDataReader."
                )
        self._reader = reader
        self._symbol = symbol
        self._shards = _shards(self._part("create_shards"), symbol)
        self._lock = threading.Lock()
        if not self.num_records:
            raise NoDataError(f"{symbol}: create_shards() lists no records.")

    @property
    def files(self) -> Sequence[RecordFile]:
        """One `RecordFile` per shard: its name and its number of records."""
        return [RecordFile(shard.name, shard.count) for shard in self._shards]

    @functools.cached_property
    def num_records(self) -> int:
        """Total number of records in all shards."""
        return sum(shard.count for shard in self._shards)

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return records `start` (inclusive) to `stop` (exclusive) as bytes; strings as UTF-8.

        Raises:
            DataError: A record is neither bytes nor a string.
        """
        return [self._as_bytes(record) for record in self._read(start, stop)]

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records `start` to `stop`, decoded.

        Args:
            start: Number of the first record.
            stop: Number after the last record.
            schema: Schema for decoding bytes. None: decode each tf.Example by the types stored in
                it. Records that the reader yields as mappings are not decoded.

        Raises:
            DataError: A record cannot be decoded.
        """
        records = self._read(start, stop)
        if all(isinstance(record, Mapping) for record in records):
            return [
                {name: np.asarray(value) for name, value in record.items()} for record in records
            ]
        examples = [self._as_bytes(record) for record in records]

        def where(number: int) -> str:
            return f"{self._symbol.name}(): record {start + number}"

        if schema is None:
            return decode_batch_schemaless(examples, where)
        return [*schema.decode_batch(examples, where)]

    def _read(self, start: int, stop: int) -> list[Any]:
        if not 0 <= start <= stop <= self.num_records:
            raise IndexError(
                f"There are no records {start} to {stop}: there are {self.num_records}."
            )
        records: list[Any] = []
        first = 0
        with self._lock:
            for shard in self._shards:
                low, high = max(start - first, 0), min(stop - first, shard.count)
                if low < high:
                    records += self._read_shard(shard, low, high)
                first += shard.count
        return records

    def _read_shard(self, shard: _Shard, low: int, high: int) -> list[Any]:
        start, end = shard.start + low, shard.start + high
        # Supports both spellings in use: task.shard.name, and the older task.shard_name.
        task = SimpleNamespace(
            shard=SimpleNamespace(name=shard.name, start=start, end=end, indices=[]),
            shard_name=shard.name,
            start=start,
            end=end,
        )

        def read() -> list[Any]:
            return list(itertools.islice(self._reader.read_records(task), high - low + 1))

        records: list[Any] = self._called("read_records", read)
        if len(records) != high - low:
            raise DataError(
                f"{self._symbol}: read_records() yielded "
                f"{'more than ' if len(records) > high - low else ''}"
                f"{min(len(records), high - low)} records of {shard.name!r} for the range {start} "
                f"to {end}; expected {high - low}."
            )
        return records

    def _as_bytes(self, record: Any) -> bytes:
        if isinstance(record, (bytes, bytearray, memoryview)):
            return bytes(record)
        if isinstance(record, str):
            return record.encode()
        raise DataError(
            f"{self._symbol}: read_records() yielded {described(record)}; a pipeline accepts bytes "
            "or strings. Yield bytes, such as a serialized tf.Example or a line."
        )

    def _part(self, method: str) -> Any:
        return self._called(method, getattr(self._reader, method))

    def _called(self, method: str, function: Callable[[], Any]) -> Any:
        symbol = self._symbol
        return call(Symbol(f"{symbol.name}().{method}", function, symbol.file, symbol.line))


class ReaderOpener:
    """Opens data with the user's `custom_data_reader`; callable, as `ModelDefinition.open_source`.

    Args:
        symbol: The user's `custom_data_reader`, a function or class.
        reading: Reader of the user's code, which provides the params.
    """

    def __init__(self, symbol: Symbol, reading: DialectReader) -> None:
        self._symbol = symbol
        names = list(signature_of(symbol).parameters)
        # The first argument is the data, whatever its name.
        self._first = names[0] if names else ""
        self._takes_size = "records_per_task" in names
        self._reading = reading
        self._params = reading.params.declare(symbol, {self._first, "records_per_task"})
        self._metadata: Any = Metadata()

    def __call__(self, data: str) -> RecordSource:
        """Create the user's reader for some data, and return the records that it reads.

        Args:
            data: The value of `--data`; the reader interprets it.
        """
        params = {**self._params, **self._reading.params.rest(self._symbol)}
        if self._takes_size:
            params["records_per_task"] = RECORDS_PER_TASK
        reader = call(self._symbol, data, **params)
        source = ReaderSource(reader, self._symbol)
        self._metadata = getattr(reader, "metadata", None) or self._metadata
        return source

    def metadata(self) -> Any:
        """Return the column metadata of the most recently opened reader that has any.

        Returns an empty `Metadata` if no reader has been opened yet, or if none has any.
        """
        return self._metadata


def _shards(listed: Any, symbol: Symbol) -> list[_Shard]:
    if isinstance(listed, Mapping):
        listed = [(name, *value) for name, value in listed.items()]
    try:
        return [_Shard(str(name), int(start), int(count)) for name, start, count in listed]
    except (TypeError, ValueError):
        raise DefinitionError(
            f"{symbol}: create_shards() returned {listed!r:.80}; expected a list of "
            "(name, start, count)."
        ) from None
