"""A training is told of, and never waits or stops for it."""

import threading
import time

import pytest

from elasticdl.errors import TrackingError
from elasticdl.event_file import EventLog, read_events
from elasticdl.events import EpochFinished, JobFailed, JobFinished
from elasticdl.testing.memory_tracker import MemoryTracker
from elasticdl.tracking.follow import FollowedLog
from elasticdl.tracking.tracker import Kind, TrackedAttempt

ATTEMPT = TrackedAttempt(number=1, job_id="train-1", run_name="run")


def epoch(number):
    return EpochFinished(epoch=number, step=10 * number, metrics={"loss": 1.0}, time=float(number))


@pytest.fixture
def notes():
    return []


@pytest.fixture
def log(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        yield log


class Unreliable(MemoryTracker):
    """Takes nothing while it is down, and never epoch 7."""

    where = "unreliable"
    down = False

    def point(self, point):
        if self.down:
            raise TrackingError("It does not answer.")
        if point.epoch == 7:
            raise ValueError("It does not like 7.")
        super().point(point)

    def epochs(self):
        return [at for kind, at in self.run.points if kind is Kind.EPOCH]


def test_events_reach_the_log_and_the_trackers(log, notes):
    one, other = MemoryTracker(), MemoryTracker()
    with FollowedLog(log, notes.append) as events:
        events.track([one, other], ATTEMPT)
        events.write(epoch(1))
        events.write(JobFinished(step=10))

    assert [event.event for event in read_events(log.path)] == ["epoch_finished", "job_finished"]
    for tracker in (one, other):
        assert list(tracker.run.points) == [(Kind.EPOCH, 1)]
        assert tracker.run.status == "FINISHED"
    assert notes == []


def test_earlier_events_are_sent_first(log, notes):
    tracker = MemoryTracker()
    with FollowedLog(log, notes.append) as events:
        events.track([tracker], ATTEMPT, [epoch(0), JobFailed(kind="X", message="before")])
        events.write(epoch(1))

    assert list(tracker.run.points) == [(Kind.EPOCH, 0), (Kind.EPOCH, 1)]
    assert tracker.run.status == "RUNNING", "How an earlier attempt ended is no news"


def test_without_trackers_only_the_log_is_written(log, notes):
    before = threading.active_count()
    with FollowedLog(log, notes.append) as events:
        events.write(epoch(1))

    assert threading.active_count() == before
    assert len(read_events(log.path)) == 1


def test_a_failing_tracker_is_noted_once_and_updated_later(log, notes):
    tracker, steady = Unreliable(), MemoryTracker()
    tracker.down = True
    with FollowedLog(log, notes.append, retry_s=0) as events:
        events.track([tracker, steady], ATTEMPT)
        for number in range(3):
            events.write(epoch(number))
        wait_for(lambda: len(steady.run.points) == 3)
        tracker.down = False
        events.write(epoch(3))

    assert tracker.epochs() == [0, 1, 2, 3]
    assert len(notes) == 1
    assert notes[0].startswith("It does not answer. Training continues.")


def test_a_failing_tracker_is_retried_at_the_end(log, notes):
    tracker = Unreliable()
    tracker.down = True
    with FollowedLog(log, notes.append, retry_s=1000) as events:
        events.track([tracker], ATTEMPT)
        events.write(epoch(0))
        wait_for(lambda: notes)
        tracker.down = False
        events.write(epoch(1))
        time.sleep(0.05)
        assert tracker.epochs() == []

    assert tracker.epochs() == [0, 1]


def test_a_permanently_rejected_point_does_not_block_the_rest(log, notes):
    tracker = Unreliable()
    with FollowedLog(log, notes.append) as events:
        events.track([tracker], ATTEMPT)
        for number in (6, 7, 7, 8):
            events.write(epoch(number))

    assert tracker.epochs() == [6, 8]
    assert len(notes) == 1
    assert notes[0].startswith("unreliable is incomplete: It does not like 7.")


class Stuck(MemoryTracker):
    where = "stuck"

    def __init__(self):
        super().__init__()
        self.free = threading.Event()

    def point(self, point):
        self.free.wait()


def test_a_slow_tracker_delays_neither_training_nor_end(log, notes):
    tracker = Stuck()
    started = time.monotonic()
    with FollowedLog(log, notes.append, drain_s=0.1) as events:
        events.track([tracker], ATTEMPT)
        for number in range(100):
            events.write(epoch(number))
    tracker.free.set()

    assert time.monotonic() - started < 1
    assert len(notes) == 1


def test_a_tracker_that_cannot_start_is_an_error(log, notes):
    class Absent(MemoryTracker):
        def start(self, attempt):
            raise TrackingError("There is no such server.")

    with (
        pytest.raises(TrackingError, match="no such server"),
        FollowedLog(log, notes.append) as events,
    ):
        events.track([Absent()], ATTEMPT)


@pytest.mark.parametrize(
    ("error", "status"), [(OSError("full"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_run_with_an_unwritten_end_is_not_left_running(log, notes, error, status):
    tracker = MemoryTracker()
    with pytest.raises(type(error)), FollowedLog(log, notes.append) as events:
        events.track([tracker], ATTEMPT)
        raise error

    assert tracker.run.status == status


def test_tags_and_files_keep_their_order(log, notes, tmp_path):
    tracker = MemoryTracker()
    with FollowedLog(log, notes.append) as events:
        events.track([tracker], ATTEMPT)
        events.tags({"mode": "exact"})
        events.artifact(tmp_path, "reports")
        events.write(JobFinished(step=1))

    assert tracker.run.tags["mode"] == "exact"
    assert tracker.run.files == [(tmp_path, "reports")]


def wait_for(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
