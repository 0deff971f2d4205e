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


def test_a_low_priority_job_gets_the_demand_of_higher_ones(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)
    shared.post("b", "high", 1)

    assert shared.post("c", "low", 0) == 3


def test_jobs_do_not_make_room_for_equal_or_lower_priorities(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)
    shared.post("b", "low", 5)

    assert shared.post("c", "high", 0) == 0
    assert shared.post("a", "high", 2) == 0


def test_the_latest_report_of_a_job_counts(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)
    shared.post("a", "high", 0)

    assert shared.post("b", "low", 0) == 0


def test_a_job_silent_for_five_seconds_has_no_demand(clock):
    shared = JobRegistry()
    shared.post("a", "high", 2)

    clock.now = 104.9
    assert shared.post("b", "low", 0) == 2
    clock.now = 105.1
    assert shared.post("b", "low", 0) == 0
