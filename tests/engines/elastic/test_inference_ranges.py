"""Who does which records, and when it is no use to go on; every situation is a few lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.engines.elastic.inference_ranges import (
    MAX_RECORDS_PER_RANGE,
    RangeQueue,
    records_per_range,
    split_into_ranges,
)

LONG = 600.0


def work(num_ranges=4, num_workers=2, give_up_after_s=LONG):
    return RangeQueue(split_into_ranges(num_ranges * 10, 10), num_workers, give_up_after_s, 0.0)


@given(st.integers(1, 10**7), st.integers(1, 5000), st.integers(1, 50))
def test_ranges_hold_each_record_once_in_whole_units(num_records, unit, num_workers):
    size = records_per_range(num_records, unit, num_workers)
    ranges = split_into_ranges(num_records, size)

    assert (ranges[0].start, ranges[-1].stop) == (0, num_records)
    assert all(one.stop == next_.start for one, next_ in pairwise(ranges))
    assert [range_.index for range_ in ranges] == list(range(len(ranges)))
    assert size % unit == 0
    assert size <= max(unit, MAX_RECORDS_PER_RANGE)


@given(st.integers(1, 10**6), st.integers(1, 300), st.integers(1, 20))
def test_each_worker_gets_four_ranges_if_there_are_enough_records(num_records, unit, workers):
    ranges = split_into_ranges(num_records, records_per_range(num_records, unit, workers))

    assert len(ranges) >= min(4 * workers, -(-num_records // unit))


def test_a_worker_has_one_range_at_a_time():
    some = work(num_ranges=4, num_workers=2)

    assert [some.take().index, some.take().index, some.take()] == [0, 1, None]


def test_work_is_done_when_every_range_is_done():
    some = work(num_ranges=2)
    for range_ in [some.take(), some.take()]:
        assert not some.is_done
        some.finished(range_, 1.0)

    assert some.is_done
    assert some.records_done == 20


def test_a_lost_range_is_reassigned_after_the_others():
    some = work(num_ranges=3, num_workers=1)
    some.lost(some.take(), "died", begun=True)

    order = []
    while (range_ := some.take()) is not None:
        order.append(range_.index)
        some.finished(range_, 1.0)

    assert order == [1, 2, 0]
    assert some.is_done


def test_records_of_a_lost_range_do_not_count_as_done():
    some = work()
    range_ = some.take()
    some.advanced(range_, 7, 1.0)
    assert some.records_done == 7

    some.lost(range_, "died", begun=True)

    assert some.records_done == 0


def test_deaths_do_not_count_while_workers_make_progress():
    some = work(num_ranges=1, num_workers=1)
    for records in range(1, 10):
        for _ in range(8):
            range_ = some.take()
            some.begun(1.0)
            some.lost(range_, "died", begun=True)
        range_ = some.take()
        some.begun(1.0)
        some.advanced(range_, records, 1.0)
        some.lost(range_, "died", begun=True)

        assert some.why_give_up(2.0) == ""


def test_records_that_kill_every_worker_end_the_job():
    some = work(num_ranges=1, num_workers=1)
    for _ in range(10):
        assert some.why_give_up(2.0) == ""
        range_ = some.take()
        some.begun(1.0)
        some.advanced(range_, 4, 1.0)
        some.lost(range_, "died (Crash)", begun=True)

    assert "records 0 to 9, after at most 4" in some.why_give_up(2.0)
    assert "died (Crash)" in some.why_give_up(2.0)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_five_deaths_per_worker_before_the_start_end_the_job(num_workers):
    some = work(num_workers=num_workers)
    for _ in range(5 * num_workers):
        assert some.why_give_up(2.0) == ""
        some.lost(some.take(), "died", begun=False)

    assert f"{5 * num_workers} workers in a row died before" in some.why_give_up(2.0)


def test_a_worker_that_begins_resets_the_count_of_early_deaths():
    some = work(num_workers=1)
    for _ in range(20):
        some.lost(some.take(), "died", begun=False)
        some.begun(1.0)

    assert some.why_give_up(2.0) == ""


def test_silence_ends_the_job_and_names_the_last_death():
    some = work(give_up_after_s=5.0)
    range_ = some.take()
    some.advanced(range_, 3, 2.0)
    some.lost(range_, "Worker 1 died", begun=True)

    assert some.why_give_up(7.0) == ""
    assert "No worker made progress for 6 s" in some.why_give_up(8.0)
    assert "Worker 1 died" in some.why_give_up(8.0)


def test_repeated_reports_are_not_progress():
    some = work(give_up_after_s=5.0)
    range_ = some.take()
    for now_s in range(10):
        some.advanced(range_, 3, float(now_s))

    assert some.why_give_up(9.0) != ""
