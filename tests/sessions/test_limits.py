"""Time limits of the checks of a session."""

import time

import pytest

from elasticdl.sessions.checks import limits


class Slow:
    """An object whose finalizer is at work when the time is over."""

    def __del__(self):
        time.sleep(0.3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_timeout_within_a_finalizer_is_raised_after_it(monkeypatch):
    monkeypatch.setattr(limits, "_AGAIN_S", 0.2)
    began_s = time.monotonic()

    with pytest.raises(limits.TooLongError), limits.within(0.1):
        Slow()
        time.sleep(20)

    assert time.monotonic() - began_s < 5
