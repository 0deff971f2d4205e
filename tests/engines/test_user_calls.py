"""How long a function of the user's has been running, as another thread sees it."""

import time

import pytest

from elasticdl.engines import user_calls


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass where a test says so; `clock(5)` lets five pass."""
    now_s = [1000.0]

    def passed(seconds):
        now_s[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(user_calls, "_calls", user_calls._Calls())
    return passed


def limit(slowest_s):
    return max(3.0, 10 * slowest_s)


def looks(clock, count):
    """Return what each of so many looks, one a second, finds."""
    found = []
    for _ in range(count):
        clock(1)
        found.append(user_calls.overdue(limit, "--batch_timeout"))
    return found


def test_a_call_that_takes_too_long_is_named_with_its_line(clock):
    with user_calls.calling("model.py:7", lambda: "records 0 to 15"):
        *in_time, late = looks(clock, 4)

    assert in_time == [None] * 3
    assert "has been running for 4 s on records 0 to 15" in str(late)
    assert "increase --batch_timeout" in str(late)


def test_time_while_the_process_was_stopped_does_not_count(clock):
    with user_calls.calling("model.py:7", lambda: ""):
        looks(clock, 1)
        clock(600)  # nobody looked: SIGSTOP, or a closed laptop
        found = user_calls.overdue(lambda _: 10.0, "--batch_timeout")

    assert found is None


def test_the_limit_follows_the_slowest_call(clock):
    with user_calls.calling("model.py:7", lambda: ""):
        clock(2)
    with user_calls.calling("model.py:7", lambda: ""):
        assert looks(clock, 20) == [None] * 20
        assert looks(clock, 1) != [None]
