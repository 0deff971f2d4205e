"""What is told of steps: together, with the longest pause between two of them."""

from __future__ import annotations

import pytest

from elasticdl.engines.interfaces import Commit
from elasticdl.engines.progress_bar import Silent
from elasticdl.engines.step_events import StepEvents
from elasticdl.engines.train_progress import TrainProgress
from elasticdl.sharding.ledger import LeaseUpdate, Ledger


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("elasticdl.engines.step_events.time", clock)
    return clock


class Log:
    def __init__(self):
        self.written = []

    def write(self, event):
        self.written.append(event)


def commit(events, clock, at):
    ledger = Ledger(4, 8).assign([0])
    clock.now = at
    place = TrainProgress(ledger, epoch_states={"loss": (1.0, 1.0)})
    events.add(
        Commit([LeaseUpdate(0, 1, finished=False)], [0], {"loss": (1.0, 1.0)}), ledger, place, 1
    )


class Shown(Silent):
    def advanced(self, position, details):
        self.position, self.loss = position, details["loss"]


def test_records_are_counted_instead_of_the_loss_divisor(clock) -> None:
    # The loss of a language model is a mean over tokens: twenty of them in four records.
    log, shown = Log(), Shown()
    events = StepEvents(
        log, shown, num_records=10, num_epochs=2, counts_steps=False, interval_s=1.0
    )
    ledger = Ledger(4, 8).assign([0])
    clock.now = 2.0

    events.add(
        Commit([LeaseUpdate(0, 1, finished=False)], [0], {"loss": (40.0, 20.0)}, num_examples=4),
        ledger,
        TrainProgress(ledger, epoch_states={"loss": (100.0, 40.0)}, epoch_examples=8),
        1,
    )
    events.write(1)

    assert shown.position == 8
    assert shown.loss == "2.5"  # the mean of the epoch so far
    assert [(event.num_records, event.loss) for event in log.written] == [(4, 2.0)]


def test_the_longest_pause_is_measured_between_commits(clock) -> None:
    log = Log()
    events = StepEvents(
        log, Silent(), num_records=10, num_epochs=1, counts_steps=False, interval_s=1.0
    )

    # What comes before the first one is no pause: a step is compiled.
    for at in (30.0, 30.5, 33.0):
        commit(events, clock, at)
    events.write(3)
    # A pause that ends in the next event belongs to that one.
    commit(events, clock, 37.0)
    events.write(4)
    # After a resume nothing is known of the time before.
    events.forget()
    commit(events, clock, 90.0)
    events.write(4)

    assert [event.longest_s for event in log.written] == [2.5, 4.0, 0.0]


def test_progress_counts_steps_if_they_end_the_training(clock) -> None:
    shown = Shown()
    events = StepEvents(
        Log(), shown, num_records=10, num_epochs=2, counts_steps=True, interval_s=1.0
    )

    commit(events, clock, at=1.0)

    assert shown.position == 1
