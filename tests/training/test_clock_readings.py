"""Which values of callbacks are moved as readings of a clock when a job resumes."""

import json
import time
from datetime import datetime, timedelta

import numpy as np
import pytest

from elasticdl.training.clock_readings import ClockReadings

PAUSE_S = 7200.0
CLOCKS = ["time", "perf_counter", "monotonic"]


@pytest.fixture
def clocks(monkeypatch):
    """Set all clocks by hand; `clocks(5.0)` lets five seconds pass."""
    now = {"time": 1.79e9 + 0.75, "perf_counter": 40.0, "monotonic": 40.0}
    for name in CLOCKS:
        monkeypatch.setattr(time, name, lambda name=name: now[name])

    def passes(seconds, **zeros):
        for name in CLOCKS:
            now[name] += seconds + zeros.get(name, 0.0)

    return passes


class Process:
    """A process in which `on_train_begin` sets attributes."""

    def __init__(self, set_attributes):
        self.readings, self.values = ClockReadings(), {}
        with self.readings.beginning(lambda: self.values):
            self.values.update(set_attributes())

    def checkpoint(self):
        return json.loads(json.dumps(self.readings.state())), dict(self.values)

    def resume(self, checkpoint):
        kept, values = checkpoint
        self.values = {n: self.readings.moved(kept, n, value) for n, value in values.items()}


@pytest.mark.parametrize("name", CLOCKS)
def test_readings_and_deadlines_are_moved_by_the_time_that_the_job_did_not_run(name, clocks):
    def begin():
        now = getattr(time, name)()
        return {"start": now, "deadline": now + 3600.0}

    first = Process(begin)
    clocks(600.0)
    checkpoint = first.checkpoint()
    # `perf_counter` has another zero on another machine.
    clocks(PAUSE_S, perf_counter=-9e4, monotonic=5e5)
    second = Process(begin)
    second.resume(checkpoint)

    assert getattr(time, name)() - second.values["start"] == pytest.approx(600.0)
    assert second.values["deadline"] - getattr(time, name)() == pytest.approx(3000.0)


def test_readings_are_moved_in_each_of_several_resumes(clocks):
    def begin():
        return {"deadline": time.perf_counter() + 36_000.0}

    process = Process(begin)
    for _ in range(3):
        clocks(1800.0)
        checkpoint = process.checkpoint()
        clocks(PAUSE_S, perf_counter=123.0)
        process = Process(begin)
        process.resume(checkpoint)

    assert process.values["deadline"] - time.perf_counter() == pytest.approx(36_000 - 3 * 1800)


@pytest.mark.parametrize("name", ["seconds", "nanoseconds", "datetime", "numpy"])
def test_other_types_are_moved(name, clocks):
    def begin():
        return {
            "seconds": int(time.time()),
            "nanoseconds": int(time.time() * 10**9),
            "datetime": datetime.fromtimestamp(time.time()),  # noqa: DTZ006 - as users write it
            "numpy": np.float64(time.time()),
        }

    first = Process(begin)
    checkpoint = first.checkpoint()
    # The whole seconds differ by one more.
    clocks(PAUSE_S + 0.25)
    second = Process(begin)
    second.resume(checkpoint)

    moved, value = second.values[name], first.values[name]
    expected = {
        "seconds": int(PAUSE_S),
        "nanoseconds": int((PAUSE_S + 0.25) * 10**9),
        "datetime": timedelta(seconds=PAUSE_S + 0.25),
        "numpy": PAUSE_S + 0.25,
    }[name]
    assert type(moved) is type(value)
    assert moved - value == expected


def test_other_values_are_not_moved(clocks):
    numbers = iter([0.3, 0.4])

    def begin():
        return {
            "constant": 1.79e9 + 5,
            "random": next(numbers),
            "seen": 1 << 2000,
            "best": float("inf"),
            "flag": True,
            "elapsed": 0.0,
            "log": [time.time()],
        }

    first = Process(begin)
    first.values["elapsed"] = 52.12515625
    first.values["saved_at"] = time.time()
    checkpoint = first.checkpoint()
    clocks(PAUSE_S)
    second = Process(begin)
    second.resume(checkpoint)

    assert second.values == first.values


def test_constants_are_not_moved_by_a_resume_within_a_second(clocks):
    def begin():
        return {"patience": 5}

    first = Process(begin)
    checkpoint = first.checkpoint()
    clocks(0.6)
    second = Process(begin)
    second.resume(checkpoint)

    assert second.values == {"patience": 5}


def test_values_that_a_callback_has_changed_since_are_not_moved(clocks):
    def begin():
        return {"took": time.time(), "limit": time.time(), "start": time.time()}

    first = Process(begin)
    clocks(600.0)
    first.values["took"] = time.time() - first.values["took"]
    first.values["limit"] = 0.0
    checkpoint = first.checkpoint()
    clocks(PAUSE_S)
    second = Process(begin)
    second.resume(checkpoint)

    assert (second.values["took"], second.values["limit"]) == (600.0, 0.0)
    assert time.time() - second.values["start"] == 600.0


def test_nothing_is_moved_if_the_checkpoint_has_no_readings(clocks):
    process = Process(lambda: {"start": time.time()})

    assert process.readings.moved({}, "start", 12.5) == 12.5
