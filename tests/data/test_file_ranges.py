"""Ranges of global record numbers and the files they lie in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.file_ranges import FileRange, Numbering
from elasticdl.data.record_source import RecordFile


def files_of(*counts: int) -> list[RecordFile]:
    return [RecordFile(f"file-{index}", count) for index, count in enumerate(counts)]


def test_range_across_files_is_split_at_the_boundary() -> None:
    assert Numbering(files_of(2, 3)).split(1, 4) == [FileRange(0, 1, 2), FileRange(1, 0, 2)]


def test_file_without_records_has_no_part() -> None:
    assert Numbering(files_of(1, 0, 1)).split(0, 2) == [FileRange(0, 0, 1), FileRange(2, 0, 1)]


@pytest.mark.parametrize("at", [0, 2, 5])
def test_empty_range_has_no_part(at: int) -> None:
    assert Numbering(files_of(2, 3)).split(at, at) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 6), (6, 6), (2, 1)])
def test_range_outside_the_records_is_refused(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match=rf"Records {start} to {stop} were .* 5, the number"):
        Numbering(files_of(2, 3)).split(start, stop)


@given(st.data(), st.lists(st.integers(0, 4), max_size=5))
def test_parts_name_each_record_of_the_range_once_and_in_order(
    data: st.DataObject, counts: list[int]
) -> None:
    files = files_of(*counts)
    start = data.draw(st.integers(0, sum(counts)))
    stop = data.draw(st.integers(start, sum(counts)))

    named = [
        (files[part.file_index].uri, record)
        for part in Numbering(files).split(start, stop)
        for record in range(part.start, part.stop)
    ]

    every = [(file.uri, record) for file in files for record in range(file.num_records)]
    assert named == every[start:stop]
