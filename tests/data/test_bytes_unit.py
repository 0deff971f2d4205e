"""Records picked from units of bytes are those that lie there, joined or not."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data.bytes_unit import BytesUnit
from elasticdl.data.example import encode
from elasticdl.data.schema import Field, Schema
from elasticdl.data.units import Selection
from elasticdl.errors import SchemaError

SCHEMA = Schema((Field("x", (1,), np.dtype("int64")),))


def unit_of(*records: bytes) -> BytesUnit:
    """Return a unit with a byte before each record, and two behind."""
    memory, starts, stops = b"", [], []
    for record in records:
        starts.append(len(memory) + 1)
        stops.append(starts[-1] + len(record))
        memory += b"<" + record + b">>"
    return BytesUnit(memory, np.array(starts, np.int64), np.array(stops, np.int64))


def all_of(*units: BytesUnit) -> Selection:
    """Return all records of some units, the last one first."""
    places = [(w, row) for w, unit in enumerate(units) for row in range(len(unit.starts))][::-1]
    which, rows = np.array(places, np.int64).reshape(-1, 2).T
    return Selection(units, which, rows, lambda i: f"record {i}")


@pytest.mark.parametrize("memory_bytes", [0, 1000])
def test_joined_units_hold_the_records_of_each(memory_bytes: int) -> None:
    units = [unit_of(b"ab", b"", b"cde"), unit_of(), unit_of(b""), unit_of(b"fghijklm")]

    joined = BytesUnit.joined(iter(units), memory_bytes)

    expected = [b"fghijklm", b"", b"cde", b"", b"ab"]
    assert BytesUnit.serialized(all_of(joined)) == expected
    assert BytesUnit.serialized(all_of(*units)) == expected


def test_records_of_many_lengths_are_decoded_in_their_order() -> None:
    numbers = [3, 300, 4, 70_000, 5, 6, 301, 2**40, 7, 302, 303]
    records = [encode({"x": np.int64([number])}) for number in numbers]
    picked = all_of(unit_of(*records[:3]), unit_of(*records[3:4]), unit_of(*records[4:]))

    decoded = BytesUnit.records(picked, SCHEMA)

    assert [int(record["x"][0]) for record in decoded] == numbers[::-1]


def test_changing_a_decoded_record_does_not_change_the_unit() -> None:
    unit = BytesUnit.joined([unit_of(*[encode({"x": np.int64([1])})] * 5)], 0)
    for record in BytesUnit.records(all_of(unit), SCHEMA):
        record["x"][0] = 2

    assert [int(record["x"][0]) for record in BytesUnit.records(all_of(unit), SCHEMA)] == [1] * 5


def test_a_record_that_is_not_an_example_is_named() -> None:
    good = encode({"x": np.int64([1])})
    picked = all_of(unit_of(*[good] * 4), unit_of(b"?" * len(good)))

    with pytest.raises(SchemaError, match="record 0: its"):
        BytesUnit.records(picked, SCHEMA)
