"""Signals are answered where weights and ledger agree."""

import os
import signal

import pytest

from elasticdl.engines.interrupts import Interrupts


def test_a_signal_is_handled_at_the_next_safe_point():
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        interrupts.check()

    assert reached
    assert interrupts.handled_at_safe_point


def test_a_second_signal_is_handled_immediately():
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on")

    assert not interrupts.handled_at_safe_point


def test_a_signal_without_a_safe_point_is_handled_at_the_end():
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        pass

    assert signal.getsignal(signal.SIGTERM) is before
