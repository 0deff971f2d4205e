"""What one job is told of the others; the clock is the test's."""

import pytest

from elasticdl.engines.elastic import job_registry
from elasticdl.engines.elastic.job_registry import JobRegistry


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr(job_registry.time, "monotonic", lambda: Clock.now)
    return Clock


def test_a_low_job_hears_how_many_workers_high_ones_wait_for(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)
    shared.post("b", "high", 1)

    assert shared.post("c", "low", 0) == 3


def test_nobody_makes_room_for_an_equal_or_a_lower_one(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)
    shared.post("b", "low", 5)

    assert shared.post("c", "high", 0) == 0
    assert shared.post("a", "high", 2) == 0


def test_the_latest_word_of_a_job_counts(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)
    shared.post("a", "high", 0)

    assert shared.post("b", "low", 0) == 0


def test_who_has_been_silent_for_five_seconds_waits_for_nothing(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)

    clock.now = 104.9
    assert shared.post("b", "low", 0) == 2
    clock.now = 105.1
    assert shared.post("b", "low", 0) == 0
