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
def test_the_chosen_records_come_in_the_order_of_their_numbers(schema):
    source = chosen(7, 2, 3, 9)

    assert source.num_records == 4
    assert values(source, 0, 4, schema) == [7, 2, 3, 9]
    assert values(source, 1, 3, schema) == [2, 3]
    assert source.read_bytes(0, 2) == SOURCE.read_bytes(7, 8) + SOURCE.read_bytes(2, 3)


def test_who_changes_a_record_changes_it_for_nobody_else():
    source = chosen(1, 2)
    source.read_records(0, 1, None)[0]["x"][0] = 99

    assert values(source, 0, 2) == [1, 2]


def test_its_one_file_says_whose_it_is_and_how_many():
    (file,) = chosen(1, 2).files

    assert (file.uri, file.num_records) == ("memory (p1)", 2)


def test_a_range_beyond_the_end_is_refused():
    with pytest.raises(IndexError):
        chosen(1, 2).read_records(0, 3, None)
