"""Which values of callbacks are moved as readings of a clock when a job resumes."""

import json
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from elasticdl.training import clock_readings
from elasticdl.training.clock_readings import begin_training, pack, unpack

PAUSE_S = 7200.0
CLOCKS = ["time", "perf_counter", "monotonic"]


def advance(monkeypatch, seconds):
    """Let all clocks show `seconds` more, as in another process later."""
    for name in CLOCKS:
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + seconds)


def stored(value):
    return json.loads(json.dumps(pack(value)))


def with_nanoseconds(name):
    """Return a reading of a clock that does not end in three zeros by chance."""
    return next(v for v in iter(getattr(time, name), None) if round(v, 6) != v)


@pytest.mark.parametrize("name", CLOCKS)
def test_a_reading_is_moved_by_the_time_that_the_job_did_not_run(name, monkeypatch):
    start = with_nanoseconds(name)

    kept = stored(start)
    advance(monkeypatch, PAUSE_S)
    elapsed = getattr(time, name)() - unpack(kept, current=start + PAUSE_S)

    assert 0 <= elapsed < PAUSE_S / 2


@pytest.mark.parametrize("name", ["time_ns", "perf_counter_ns"])
def test_nanoseconds_are_moved(name, monkeypatch):
    monkeypatch.setattr(clock_readings, "_LARGE_S", 0.0)
    start = getattr(time, name)()

    kept = stored(start)
    advance(monkeypatch, PAUSE_S)
    moved = unpack(kept, current=None)

    assert type(moved) is int
    assert 0 <= moved - start - PAUSE_S * 10**9 < PAUSE_S / 2 * 10**9


@pytest.mark.parametrize("zone", [None, UTC])
def test_datetimes_are_moved(zone, monkeypatch):
    start = datetime.now(zone)

    kept = stored(start)
    advance(monkeypatch, PAUSE_S)
    moved = unpack(kept, current=None)

    assert timedelta(0) <= moved - start - timedelta(seconds=PAUSE_S) < timedelta(hours=1)


@pytest.mark.parametrize("name", CLOCKS)
def test_a_deadline_is_moved_if_the_new_process_sets_one_as_far_ahead(name, monkeypatch):
    begin_training()
    deadline = with_nanoseconds(name) + 3600.0

    kept = stored(deadline)
    advance(monkeypatch, PAUSE_S)
    begin_training()
    again = getattr(time, name)() + 3600.0

    assert unpack(kept, current=again) == pytest.approx(deadline + PAUSE_S, abs=PAUSE_S / 2)
    # A constant, a new kind of value, and a value that is no deadline any more.
    for current in (deadline, None, 0.0, again + 1800.0):
        assert unpack(kept, current) == deadline


def test_other_numbers_are_not_readings(monkeypatch):
    # Soon after a boot, `perf_counter` is as small as metrics are.
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setitem(clock_readings._started, name, 2.0)
        monkeypatch.setattr(time, name, lambda: 1000.0)
    third = float(np.float32(100 / 3))
    values = [97.5, 200 / 3, third, 0.0001234, 12, 1e300, float("nan"), float("inf"), True, "a"]

    assert [value for value in values if pack(value) is not None] == []
    assert pack(12.345678901) is not None


def test_the_state_of_a_generator_is_not_a_reading():
    now = int(time.time())

    assert [n for n in range(now - 60, now + 60) if pack(n) is not None] == []
