"""A validation split is a function of each record's file name and number, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data import split
from elasticdl.data.record_source import RecordFile
from elasticdl.data.split import SplitNumbering
from elasticdl.data.split_source import SplitUnits, split_records, whole
from elasticdl.errors import UsageError
from elasticdl.testing.memory_source import MemorySource
from elasticdl.testing.record_source import check_gathering, check_record_source

FILES = [RecordFile("d/a", 900), RecordFile("d/b", 0), RecordFile("d/c", 1100)]


def held_out(files, share=0.2):
    """Return the (file, number in it) of each record held out."""
    numbering = SplitNumbering(files, share, held_out=True)
    return {numbering.name(number) for number in range(numbering.num_records)}


def test_each_record_is_on_exactly_one_side():
    sides = [SplitNumbering(FILES, 0.2, held_out=out) for out in (True, False)]

    numbers = [number for side in sides for number in side.span(0, side.num_records).tolist()]

    assert sorted(numbers) == list(range(2000))
    assert sum(file.num_records for file in sides[0].files) == sides[0].num_records


def test_the_share_is_held_out():
    numbering = SplitNumbering([RecordFile("a", 100_000)], 0.2, held_out=True)

    assert numbering.num_records / 100_000 == pytest.approx(0.2, abs=0.005)


def test_the_split_does_not_change_between_versions():
    numbering = SplitNumbering([RecordFile("data/part-0.csv", 40)], 0.2, held_out=True)

    assert numbering.span(0, numbering.num_records).tolist() == [1, 6, 7, 9, 20, 26, 27, 34, 35, 36]


def test_adding_files_moves_no_record():
    added = [RecordFile("d/0", 50), *FILES[:2], RecordFile("d/bb", 7), RecordFile("d/c", 1200)]

    before, after = held_out(FILES), held_out(added)

    assert before == {name for name in after if _is_in(name, FILES)}


def _is_in(name, files):
    uri, _, number = name.partition(", record ")
    return any(file.uri == uri and int(number) < file.num_records for file in files)


def test_the_split_does_not_depend_on_the_folder():
    moved = [RecordFile(f"s3://bucket/{file.uri}", file.num_records) for file in FILES]

    assert {name.removeprefix("s3://bucket/") for name in held_out(moved)} == held_out(FILES)


def test_a_smaller_share_is_a_subset_of_a_larger_one():
    assert held_out(FILES, 0.1) < held_out(FILES, 0.2)


def test_records_are_found_across_blocks(monkeypatch):
    monkeypatch.setattr(split, "_BLOCK", 64)
    numbering = SplitNumbering(FILES, 0.2, held_out=False)
    numbers = numbering.span(0, numbering.num_records)
    some = np.random.default_rng(0).permutation(numbering.num_records)

    np.testing.assert_array_equal(numbering.in_source(some), numbers[some])
    np.testing.assert_array_equal(numbering.span(70, 300), numbers[70:300])
    borders = np.array([0, 1, 64, 900, 2000])
    np.testing.assert_array_equal(
        numbering.num_before(borders), [np.sum(numbers < border) for border in borders]
    )
    one_block = SplitNumbering(FILES, 0.2, held_out=False)
    assert numbering.files == one_block.files


def test_messages_give_record_numbers_within_the_file():
    numbering = SplitNumbering([RecordFile("data/part-0.csv", 40)], 0.2, held_out=True)

    assert numbering.name(1) == "data/part-0.csv, record 6"
    assert numbering.name_some([0, 3]) == "data/part-0.csv, records 1 and 9"


def test_a_source_without_units_can_be_split():
    records = [{"x": np.int64([i])} for i in range(40)]
    source = MemorySource(records)

    for side in split_records(source, 0.3):
        numbers = side.numbering.span(0, side.num_records).tolist()
        assert not isinstance(side, SplitUnits)
        assert whole(side) is source
        expected = source.read_bytes(0, 40)
        check_record_source(side, [expected[number] for number in numbers])
        check_gathering(side)


def test_a_range_reads_only_the_units_that_contain_it():
    source = CountingSource([{"x": np.int64([i])} for i in range(10_000)])
    side = split_records(source, 0.2).validation
    source.num_read = 0

    side.read_bytes(10, 12)

    assert 0 < source.num_read <= 2100


class CountingSource(MemorySource):
    num_read = 0

    def read_bytes(self, start, stop):
        self.num_read += stop - start
        return super().read_bytes(start, stop)


def test_a_side_without_records_is_refused():
    source = MemorySource([{"x": np.int64([i])} for i in range(1, 3)])

    with pytest.raises(UsageError, match=r"--validation_split=0.001: no record is left for valid"):
        split_records(source, 0.001)
    with pytest.raises(UsageError, match="no record is left for training; of 2 records in memory"):
        split_records(source, 0.9999)
