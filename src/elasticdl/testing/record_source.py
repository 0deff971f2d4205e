"""Contract checks of `RecordSource`, for your own readers as well as ours.

Write a few files, open them with your reader, and pass it with the expected content:

    check_record_source(MyReader(paths), [b"first record", b"second record"])
    check_decoding(MyReader(paths), schema)

A check returns None if the reader keeps the contract, and otherwise raises `AssertionError` with a
description. The checks need no test framework and do not depend on how a reader works.
"""

from __future__ import annotations

import itertools
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.example import decode_batch_schemaless
from elasticdl.data.record_source import RecordSource
from elasticdl.data.unit_reader import UnitReader
from elasticdl.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema

_NUM_THREADS = 4
# With more positions, there are too many pairs of them; some positions are drawn at random.
_MAX_POSITIONS = 16


def check_record_source(source: RecordSource, expected_bytes: Sequence[bytes]) -> None:
    """Check that a reader returns the expected records for any range of positions.

    It must do so in several threads at once, and in a copy made by pickling.

    Args:
        source: A reader that was just opened.
        expected_bytes: All its records, in order. A few dozen records in two or more files find
            the most errors; include empty records if the format permits them.

    Raises:
        AssertionError: The reader breaks the contract; the message says how.
    """
    _require(
        isinstance(source, RecordSource),
        f"{type(source).__name__} lacks a method or property of RecordSource.",
    )
    _check_files(source, len(expected_bytes))
    _check_ranges(source, expected_bytes)
    _check_outside(source)
    _check_threads(source, expected_bytes)
    # S301: the source itself produced these bytes one call before.
    travelled = pickle.loads(pickle.dumps(source))  # noqa: S301
    _require(
        list(travelled.files) == list(source.files),
        f"After pickling, files are {travelled.files}; before, they were {source.files}.",
    )
    _check_ranges(travelled, expected_bytes)


def check_decoding(source: RecordSource, schema: Schema | None = None) -> None:
    """Check that `read_records` decodes the records that `read_bytes` returns.

    Args:
        source: A reader of files whose records are `tf.Example`s or rows of a table.
        schema: The schema for decoding. None: decode each record by its own types.

    Raises:
        AssertionError: A field has another name, order, dtype, shape or value.
    """

    def name(i: int) -> str:
        return f"record {i}"

    serialized = source.read_bytes(0, source.num_records)
    expected: list[Record]
    if schema is None:
        expected = decode_batch_schemaless(serialized, name)
    else:
        expected = [*schema.decode_batch(serialized, name)]
    for start, stop in _ranges(source):
        records = source.read_records(start, stop, schema)
        _require(
            len(records) == stop - start,
            f"read_records({start}, {stop}) returned {len(records)} records.",
        )
        for number, record in enumerate(records, start):
            # Without a schema, an example stores booleans as 0 and 1.
            stored = {
                k: v.astype(np.int64) if schema is None and v.dtype == bool else v
                for k, v in record.items()
            }
            _check_same_fields(number, stored, expected[number])


def check_gathering(source: RecordSource, schema: Schema | None = None) -> None:
    """Check that records read in any order (`UnitReader.gather`) equal those in stored order.

    Args:
        source: A reader of files whose records are `tf.Example`s or rows of a table.
        schema: The schema for decoding. None: decode each record by its own types.

    Raises:
        AssertionError: A record differs, or the units (groups of records that the reader reads at
            once) do not have `num_records` records in total.
    """
    count = source.num_records
    expected = source.read_records(0, count, schema)
    serialized = source.read_bytes(0, count)
    reader = UnitReader(source, schema)
    sizes = reader.units.sizes
    _require(
        int(sizes.sum()) == count and bool((sizes >= 0).all()),
        f"The units have {sizes.tolist()} records; there are {count}.",
    )
    for chosen in _orders(count):
        gathered = reader.gather(chosen)
        half = len(chosen) // 2
        records = [*gathered.records(0, half), *gathered.records(half, len(chosen))]
        for number, record in zip(chosen.tolist(), records, strict=True):
            _check_same_fields(number, record, expected[number])
        as_stored = UnitReader(source, None, serialized=True).gather(chosen).serialized()
        _require(
            as_stored == [serialized[number] for number in chosen.tolist()],
            f"Gathered as stored, records {chosen.tolist()} are not those of read_bytes.",
        )


def _orders(count: int) -> list[npt.NDArray[np.int64]]:
    everything = np.random.default_rng(0).permutation(count).astype(np.int64)
    return [everything, everything[::-1][: count // 3], everything[:1], everything[:0]]


def check_damage_is_found(
    open_source: Callable[[Sequence[str]], RecordSource],
    content: bytes,
    expected_bytes: Sequence[bytes],
    folder: Path,
    offsets: Iterable[int] | None = None,
) -> None:
    """Check that a reader raises `CorruptDataError` if any byte of its file is damaged.

    Reading may also succeed, if all records are still right. This check is only for formats with
    checksums: a text table cannot detect damage.

    Args:
        open_source: Function (paths) -> reader of these files.
        content: Content of an undamaged file.
        expected_bytes: The records in that file, in order.
        folder: Folder for the damaged copies.
        offsets: Positions of the bytes to damage, one in each copy. None: every byte.

    Raises:
        AssertionError: A damaged file was read without an error and returned other records, or the
            error does not name the file and an offset in it.
    """
    path = folder / "damaged"
    for offset in range(len(content)) if offsets is None else offsets:
        # The lowest bit, the highest, and all bits.
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[offset] ^= flip
            path.write_bytes(damaged)
            try:
                source = open_source([str(path)])
                read = source.read_bytes(0, source.num_records)
            except CorruptDataError as error:
                _require(
                    error.file == str(path) and 0 <= error.offset_bytes <= len(content),
                    f"Byte {offset} was damaged; the error names {error.file}, "
                    f"byte {error.offset_bytes}.",
                )
                continue
            # A byte without meaning, such as the time in a gzip header, may have any value.
            _require(
                read == list(expected_bytes),
                f"Byte {offset} was damaged by 0x{flip:02x}, and no CorruptDataError was raised; "
                f"{len(read)} records were read where there are {len(expected_bytes)}.",
            )


def _check_files(source: RecordSource, expected: int) -> None:
    uris = [file.uri for file in source.files]
    _require(uris == sorted(uris), f"Files must be sorted by URI; they are {uris}.")
    counts = [file.num_records for file in source.files]
    _require(
        sum(counts) == source.num_records == expected,
        f"The files hold {counts} records, num_records is {source.num_records}; "
        f"{expected} were expected.",
    )


def _check_ranges(source: RecordSource, expected_bytes: Sequence[bytes]) -> None:
    for start, stop in _ranges(source):
        expected = list(expected_bytes[start:stop])
        # Twice, because the second read may come from a cache.
        for _ in range(2):
            read = source.read_bytes(start, stop)
            _require(
                read == expected,
                f"read_bytes({start}, {stop}) returned {_shown(read)}; "
                f"expected {_shown(expected)}.",
            )
            _require(
                all(type(record) is bytes for record in read),
                f"read_bytes({start}, {stop}) returned something that is not bytes.",
            )


def _check_outside(source: RecordSource) -> None:
    count = source.num_records
    outside = [(-1, 0), (0, count + 1), (count + 1, count + 1), (count, count - 1)]
    for start, stop in outside:
        for read in (source.read_bytes, lambda start, stop: source.read_records(start, stop, None)):
            try:
                read(start, stop)
            except IndexError:
                continue
            raise AssertionError(
                f"Records {start} to {stop} were read of {count}; an IndexError was expected."
            )


def _check_threads(source: RecordSource, expected_bytes: Sequence[bytes]) -> None:
    ranges = list(_ranges(source))

    def read_in_some_order(seed: int) -> list[tuple[int, int]]:
        shuffled = random.Random(seed).sample(ranges, len(ranges))  # noqa: S311 - no secret
        return [
            (start, stop)
            for start, stop in shuffled
            if source.read_bytes(start, stop) != list(expected_bytes[start:stop])
        ]

    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        wrong = [*itertools.chain(*threads.map(read_in_some_order, range(_NUM_THREADS)))]
    _require(
        not wrong, f"Read by {_NUM_THREADS} threads at once, these ranges were wrong: {wrong}."
    )


def _ranges(source: RecordSource) -> list[tuple[int, int]]:
    """Return ranges (start, stop) of records to read in a check.

    All possible ranges if there are few records, else those around file boundaries.
    """
    borders = [0, *itertools.accumulate(file.num_records for file in source.files)]
    near = {border + step for border in borders for step in (-1, 0, 1)}
    positions = sorted(near & set(range(source.num_records + 1)))
    others = [i for i in range(source.num_records + 1) if i not in near]
    missing = min(max(_MAX_POSITIONS - len(positions), 0), len(others))
    drawn = random.Random(0).sample(others, missing)  # noqa: S311 - no secret
    return list(itertools.combinations_with_replacement(sorted([*positions, *drawn]), 2))


def _check_same_fields(number: int, record: Record, expected: Record) -> None:
    _require(
        list(record) == list(expected),
        f"Record {number} has the fields {list(record)}; expected {list(expected)}.",
    )
    for field, values in expected.items():
        got = record[field]
        _require(
            got.dtype == values.dtype
            and got.shape == values.shape
            and np.array_equal(got, values, equal_nan=values.dtype.kind == "f"),
            f"Record {number}, field {field!r} is {got!r}; read_bytes has {values!r}.",
        )


def _shown(records: Sequence[bytes]) -> str:
    """Format records for an error message, truncated if they are long."""
    text = repr(records)
    most = 200
    return text if len(text) <= most else f"{len(records)} records: {text[:most]}..."


def _require(holds: bool, broken: str) -> None:
    if not holds:
        raise AssertionError(broken)
