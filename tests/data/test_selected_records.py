"""A choice of records is a source like any other."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data.schema import Field, Schema
from elasticdl.data.selected_records import SelectedRecords
from elasticdl.testing.memory_source import MemorySource

SOURCE = MemorySource([{"x": np.int64([i])} for i in range(10)])
SCHEMA = Schema((Field("x", (1,), np.dtype("int64")),))


def chosen(*numbers):
    return SelectedRecords(SOURCE, numbers, "p1")


def values(source, start, stop, schema=None):
    return [int(record["x"][0]) for record in source.read_records(start, stop, schema)]


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_selected_records_are_ordered_by_number(schema):
    source = chosen(7, 2, 3, 9)

    assert source.num_records == 4
    assert values(source, 0, 4, schema) == [7, 2, 3, 9]
    assert values(source, 1, 3, schema) == [2, 3]
    assert source.read_bytes(0, 2) == SOURCE.read_bytes(7, 8) + SOURCE.read_bytes(2, 3)


def test_changing_a_record_does_not_affect_later_reads():
    source = chosen(1, 2)
    source.read_records(0, 1, None)[0]["x"][0] = 99

    assert values(source, 0, 2) == [1, 2]


def test_its_only_file_has_the_owner_and_the_record_count():
    (file,) = chosen(1, 2).files

    assert (file.uri, file.num_records) == ("memory (p1)", 2)


def test_a_range_beyond_the_end_is_refused():
    with pytest.raises(IndexError):
        chosen(1, 2).read_records(0, 3, None)
