"""Gaps in columns that the training data lacked: an error only if the input function looks at them.

Without a schema, a row with an empty cell cannot be decoded. Data for evaluation or prediction may
have more columns than the training data, and the model hardly reads them. So a gap in such a column
is not an error by itself: the rows are decoded without the column, and a record raises the error
when the column is accessed or all columns are listed.

Callers: `engines/inference.py`; `engines/record_data.py` for messages.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from elasticdl.data.file_ranges import numbering_of
from elasticdl.data.schema import NoValueError, Schema
from elasticdl.data.units import UnitSource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.record_source import RecordFile, RecordSource


class UnreadGaps:
    """A record source that decodes tables in spite of gaps in untrained columns.

    Args:
        source: The records.
        trained: Columns of the training data; a gap in one of these remains an error.
        tolerates: Function () -> whether gaps in other columns are tolerated; called when there
            is one.
    """

    def __init__(
        self, source: RecordSource, trained: Collection[str], tolerates: Callable[[], bool]
    ) -> None:
        self._source, self._trained, self._tolerates = source, trained, tolerates
        self._starts: list[int] = []
        self._unit: tuple[int, Any] = (-1, None)
        self.numbering = numbering_of(source)

    @property
    def files(self) -> Sequence[RecordFile]:
        """The files of the source."""
        return self._source.files

    @property
    def num_records(self) -> int:
        """Number of records in all files."""
        return self._source.num_records

    def decoded_bytes(self) -> int:
        """Return 0: the rows of a table take about as much memory decoded as stored."""
        return 0

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return records as stored; see `RecordSource`. A gap is an error."""
        return self._source.read_bytes(start, stop)

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records, decoded; see `RecordSource`.

        Raises:
            NoValueError: A column of the training data has a gap.
            DataError: The records cannot be read.
        """
        try:
            return self._source.read_records(start, stop, schema)
        except NoValueError as error:
            if schema is not None or error.column in self._trained:
                raise
            if not self._has_tables() or not self._tolerates():
                raise
        return [
            record
            for table, where in self._tables(start, stop)
            for record in _decoded(table, where, self._trained)
        ]

    def _name(self, start: int, row: int) -> str:
        return self.numbering.name(start + row)

    def _has_tables(self) -> bool:
        return isinstance(self._source, UnitSource) and hasattr(self._read(0), "table")

    def _read(self, index: int) -> Any:
        if self._unit[0] != index:
            assert isinstance(self._source, UnitSource)  # noqa: S101 - the caller has checked
            self._unit = (index, self._source.read_unit(index, None))
        return self._unit[1]

    def _tables(self, start: int, stop: int) -> Iterator[tuple[Any, Callable[[int], str]]]:
        """Yield the rows of a range as tables, none of which spans two units."""
        assert isinstance(self._source, UnitSource)  # noqa: S101 - the caller has checked
        if not self._starts:
            self._starts = [*accumulate(self._source.units(None).sizes.tolist(), initial=0)]
        while start < stop:
            index = bisect_right(self._starts, start) - 1
            end = min(stop, self._starts[index + 1])
            table = self._read(index).table.slice(start - self._starts[index], end - start)
            yield table, functools.partial(self._name, start)
            start = end


def names_of(record: Record) -> list[str]:
    """Return the names of a record's columns, without those that have gaps in it."""
    return [*(dict.keys(record) if isinstance(record, _RecordWithGaps) else record)]


class _RecordWithGaps(dict[str, Any]):
    """A record without some of its columns, which raises an error if one of these is accessed."""

    gaps: dict[str, NoValueError]

    def _check(self, key: object = None) -> None:
        if error := next(iter(self.gaps.values())) if key is None else self.gaps.get(str(key)):
            raise error

    def __missing__(self, key: str) -> Any:
        self._check(key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        self._check(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._check(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._check(key)
        return super().pop(key, *default)

    # The following would show that the columns are not there.

    def __iter__(self) -> Iterator[str]:
        self._check()
        return super().__iter__()

    def __len__(self) -> int:
        self._check()
        return super().__len__()

    def keys(self) -> Any:
        self._check()
        return super().keys()

    def values(self) -> Any:
        self._check()
        return super().values()

    def items(self) -> Any:
        self._check()
        return super().items()

    def copy(self) -> Any:
        self._check()
        return super().copy()


def _decoded(table: Any, where: Callable[[int], str], trained: Collection[str]) -> Sequence[Record]:
    """Decode rows without the untrained columns that have gaps."""
    from elasticdl.data.table import decode_table  # noqa: PLC0415 - slow import, only for tables

    gaps: dict[str, NoValueError] = {}
    while True:
        try:
            records = decode_table(table, None, where)
        except NoValueError as error:
            if error.column in trained:
                raise
            gaps[error.column] = error
            table = table.drop_columns([error.column])
        else:
            break
    if not gaps:
        return records
    found = [_RecordWithGaps(record) for record in records]
    for record in found:
        record.gaps = gaps
    return found
