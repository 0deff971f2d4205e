"""Decodes batches of tf.Examples fast: splits them into groups that are read as arrays.

Records of one schema mostly have the same bytes at the same positions, apart from the payload. So
the first record of each length gives the positions of the payloads; where the bytes between them
are equal, the payloads of all records are cut out as one array. The other records are read one by
one, which is fast where the fields have the same order as in the previous record:

    records --same length and structure--> _Uniform   one 2-D slice per field
            --same fields----------------> _Ragged    one slice per field and record, joined
            --anything else protobuf reads-> re-encoded, then _Ragged
            --the rest-------------------> SchemaError

Callers: `example.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from elasticdl.data.example_wire import (
    CONTINUES,
    LONGEST_VARINT,
    ExpectedLayout,
    Kind,
    Layout,
    UnusualError,
    layout_of,
    reencoded,
)
from elasticdl.data.serialized import Listed
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elasticdl.data.serialized import Serialized

    Array: TypeAlias = np.ndarray[Any, Any]

_SMALLEST_GROUP = 4
"""Fewer records than this are read one by one: arranging them as one array costs more."""

_MAX_LENGTHS = 4
"""Most distinct lengths that are grouped by length: a group has at least 1/N of the records."""

_MAX_SLICES = 8
"""From this number on, one look-up of many columns is faster than comparing slice by slice."""


class ExampleColumn(NamedTuple):
    """The values of one field in the records of a group.

    Attributes:
        values: 1-D, record after record: float32, int64, or objects that are bytes. Writable,
            and owned by the caller.
        counts: Number of values per record: one number if all have equally many, else 1-D int64.
    """

    values: Array
    counts: int | Array


class ExampleGroup(Protocol):
    """Interface of a group of records whose fields can each be read as one array.

    The records are part of a batch, and have the same fields, with values of the same kinds.
    """

    @property
    def may_lack_fields(self) -> bool:
        """Whether the group's records may omit a nullable field, whose value is then missing.

        True for `tf.Example`s; False for tables, where a missing value is a null, and a column that
        does not exist is an error.
        """
        ...

    @property
    def conversion_advice(self) -> str:
        """How to correct values of the wrong kind or shape in the data, for an error message.

        An example is "Convert the column, as with astype() in pandas". The error may continue with
        an alternative: "or correct the dtype in data_schema()".
        """
        ...

    @property
    def rows(self) -> Sequence[int]:
        """Positions of the group's records in the batch."""
        ...

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Field name -> kind of its values: `bytes`, `float` or `int64`.

        A field that is stored without a list of values has no kind and is left out.
        """
        ...

    def column(self, name: str) -> ExampleColumn:
        """Return the values of a field."""
        ...

    def raw(self, name: str, num_bytes: int) -> Array | None:
        """Return the values of a bytes field as a uint8 array `[rows, num_bytes]`.

        For fields whose numbers are stored as raw bytes (see `stored_field.py`).

        Args:
            name: Name of the field.
            num_bytes: Expected size of each value.

        Returns:
            The array; None unless every record has exactly one value of that size.
        """
        ...


def groups(
    records: Sequence[bytes] | Serialized, where: Callable[[int], str]
) -> Iterator[ExampleGroup]:
    """Split a batch into groups that can be read as arrays.

    Args:
        records: Serialized examples.
        where: Function (i) -> source of record i of the batch, for an error message.

    Yields:
        Groups of records; each record of the batch is in one of them. Read a group before
        requesting the next one: its memory may be reused.

    Raises:
        SchemaError: A record is not an example.
    """
    packed = Listed(records) if isinstance(records, Sequence) else records
    # Many small groups take longer than one group of records of different lengths.
    smallest = max(_SMALLEST_GROUP, len(packed) // _MAX_LENGTHS)
    rest: list[int] = []
    for rows, block in packed.blocks(smallest):
        if block is None:
            rest += rows
        else:
            yield from _uniform(rows, block, rest)
    if rest:
        yield from _ragged(packed, sorted(rest), where)


def _uniform(rows: list[int], block: Array, rest: list[int]) -> Iterator[ExampleGroup]:
    """Yield groups of records with equal structure; add the other records to `rest`.

    Args:
        rows: Records of one length.
        block: Their bytes, uint8 `[rows, length]`.
        rest: Receives the positions, in the batch, of the records that are in none of the groups.
    """
    while len(rows) >= _SMALLEST_GROUP:
        try:
            group = _Uniform(rows, block, layout_of(block[0].tobytes()))
        except UnusualError:
            break
        same = group.same_structure()
        if same is None:
            yield group
            return
        num_same = np.count_nonzero(same)
        if num_same < _SMALLEST_GROUP:
            break
        members = [row for row, is_member in zip(rows, same, strict=True) if is_member]
        yield _Uniform(members, block[same], group.layout)
        rows = [row for row, is_member in zip(rows, same, strict=True) if not is_member]
        block = block[~same]
    rest += rows


def _ragged(
    records: Serialized, rows: Sequence[int], where: Callable[[int], str]
) -> Iterator[ExampleGroup]:
    by_kinds: dict[tuple[tuple[str, Kind], ...], _Ragged] = {}
    group, expected = None, None
    for row in rows:
        record = records[row]
        payloads = expected.payloads(record) if expected is not None else None
        if group is None or payloads is None:
            try:
                record, layout = _read(record)
            except DecodeError:
                raise SchemaError(_not_an_example(record, where(row))) from None
            kinds = {name: feature.kind for name, feature in layout.items()}
            group = by_kinds.setdefault(tuple(sorted(kinds.items())), _Ragged(kinds))
            expected = ExpectedLayout.of(layout)
            payloads = {
                name: [record[start:stop] for start, stop in feature.ranges]
                for name, feature in layout.items()
            }
        group.add(row, payloads)
    yield from by_kinds.values()


def _read(record: bytes) -> tuple[bytes, Layout]:
    """Return a record and its layout; the record is encoded again if its form is unusual.

    Raises:
        google.protobuf.message.DecodeError: It is not an example.
    """
    try:
        return record, layout_of(record)
    except UnusualError:
        record = reencoded(record)
        return record, layout_of(record)


def _not_an_example(record: bytes, where: str) -> str:
    shown = record[:16].hex(" ") + (" ..." if len(record) > len(record[:16]) else "")
    return (
        f"{where}: its {len(record)} bytes ({shown}) are not a serialized tf.Example. `elasticdl "
        "data show` prints what a file holds; if the model parses its records itself, give it a "
        "`dataset_fn` or `create_dataset`, which receives the raw bytes."
    )


class _Uniform:
    """A group of records of equal length whose values are at the same byte positions.

    The records are the rows of a 2-D array, so the values of a field in all records are one slice.
    """

    may_lack_fields = True
    conversion_advice = "Write the data again"

    def __init__(self, rows: Sequence[int], block: Array, layout: Layout) -> None:
        self.rows = rows
        self.layout = layout
        self._block = block

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return {name: feature.kind for name, feature in self.layout.items()}

    def same_structure(self) -> Array | None:
        """Compare all bytes except the payloads with those of the first record.

        Returns:
            bool [rows], whether the record has the layout of the first one; None if all have.
        """
        block = self._block
        features = self.layout.values()
        payloads = sorted(found for feature in features for found in feature.ranges)
        borders = [0, *(border for payload in payloads for border in payload), block.shape[1]]
        between: list[Any] = [
            slice(*pair) for pair in zip(borders[::2], borders[1::2], strict=True)
        ]
        if len(between) > _MAX_SLICES:
            between = [np.r_[tuple(between)]]
        checks = [block[:, part] == block[0, part] for part in between]
        checks += [
            _complete_varints(block[:, slice(*feature.ranges[0])])
            for feature in features
            if feature.kind == "int64"
        ]
        if all(check.all() for check in checks):
            return None
        same: Array = np.logical_and.reduce([np.all(check, axis=1) for check in checks])
        return same

    def column(self, name: str) -> ExampleColumn:
        kind, ranges = self.layout[name]
        block = self._block
        if kind == "bytes":
            values = np.empty((len(self.rows), len(ranges)), object)
            for i, (start, stop) in enumerate(ranges):
                # Row by row: numpy's own byte strings drop zeros at their end.
                values[:, i] = [row.tobytes() for row in block[:, start:stop]]
            return ExampleColumn(values.reshape(-1), len(ranges))
        ((start, stop),) = ranges
        # A copy: users modify their records in place, which must not change the batch.
        payload = block[:, start:stop].copy()
        if kind == "float":
            return ExampleColumn(payload.view("<f4").reshape(-1), (stop - start) // 4)
        return _decode_varints(payload)

    def raw(self, name: str, num_bytes: int) -> Array | None:
        kind, ranges = self.layout[name]
        if kind != "bytes" or len(ranges) != 1:
            return None
        ((start, stop),) = ranges
        return self._block[:, start:stop].copy() if stop - start == num_bytes else None


class _Ragged:
    """A group of records whose values are at different byte positions.

    The values of a field are collected by joining one slice per record.
    """

    may_lack_fields = True
    conversion_advice = "Write the data again"

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.rows: list[int] = []
        self.kinds = kinds
        self._payloads: dict[str, list[list[bytes]]] = {name: [] for name in kinds}

    def add(self, row: int, payloads: Mapping[str, list[bytes]]) -> None:
        self.rows.append(row)
        for name, payload in payloads.items():
            self._payloads[name].append(payload)

    def column(self, name: str) -> ExampleColumn:
        payloads = self._payloads[name]
        kind = self.kinds[name]
        if kind == "bytes":
            values = np.empty(sum(map(len, payloads)), object)
            values[:] = [value for row in payloads for value in row]
            return ExampleColumn(values, _counts(list(map(len, payloads))))
        joined = np.frombuffer(bytearray().join([row[0] for row in payloads]), np.uint8)
        lengths = [len(row[0]) for row in payloads]
        if kind == "float":
            return ExampleColumn(joined.view("<f4"), _counts([length // 4 for length in lengths]))
        values, _ = _decode_varints(joined[np.newaxis])
        num_ends = np.concatenate(([0], np.cumsum(joined < CONTINUES)))
        borders = num_ends[np.concatenate(([0], np.cumsum(lengths)))]
        return ExampleColumn(values, _counts(np.diff(borders).tolist()))

    def raw(self, name: str, num_bytes: int) -> Array | None:
        payloads = self._payloads[name]
        if self.kinds[name] != "bytes":
            return None
        if any(len(row) != 1 or len(row[0]) != num_bytes for row in payloads):
            return None
        joined = np.frombuffer(bytearray().join([row[0] for row in payloads]), np.uint8)
        return joined.reshape(len(payloads), num_bytes)


def _counts(counts: list[int]) -> int | Array:
    return counts[0] if counts.count(counts[0]) == len(counts) else np.array(counts, np.int64)


def _complete_varints(payload: Array) -> Array:
    """Return for each row of a uint8 array whether its bytes are a sequence of complete varints.

    Varints differ in size, so a payload may have the size of a valid one and still end within a
    number.

    Returns:
        bool [rows, 1].
    """
    continues = payload >= CONTINUES
    if not continues.any():
        return np.ones((len(payload), 1), bool)
    complete = ~continues[:, -1:]
    if payload.shape[1] > LONGEST_VARINT:
        windows = np.lib.stride_tricks.sliding_window_view(continues, LONGEST_VARINT, axis=1)
        complete &= ~np.logical_or.reduce(np.logical_and.reduce(windows, axis=2), axis=1)[
            :, np.newaxis
        ]
    return complete


def _decode_varints(payload: Array) -> ExampleColumn:
    """Decode int64 numbers from uint8 `[rows, bytes]`; each row consists of complete varints."""
    flat = payload.reshape(-1)
    is_end = flat < CONTINUES
    if is_end.all():
        return ExampleColumn(flat.astype(np.int64), payload.shape[1])
    ends = np.flatnonzero(is_end)
    starts = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(flat.size) - np.repeat(starts, ends - starts + 1)
    parts = (flat & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    values = np.add.reduceat(parts, starts).view(np.int64)
    counts = is_end.reshape(payload.shape).sum(axis=1).tolist()
    return ExampleColumn(values, _counts(counts))
