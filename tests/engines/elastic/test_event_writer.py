"""What the driver writes of the workers' reports: each event once, in whatever order they come."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from elasticdl.artifacts.checkpoint_store import Checkpoint, SavedCheckpoint
from elasticdl.engines.elastic.event_buffer import CommitId, StateSnapshot, WorkerReport
from elasticdl.engines.elastic.event_writer import EventWriter
from elasticdl.events import Checkpointed, EpochFinished, Evaluated, StepCommitted
from elasticdl.job import Job, TrainingOptions


class Run:
    """A run that keeps what is written and shown."""

    checkpoint = None

    def __init__(self):
        self.written, self.shown, self.notes = [], [], []
        self.events = SimpleNamespace(write=self.written.append, publish=lambda: None)
        self.reporter = SimpleNamespace(
            advanced=lambda done, details: self.shown.append((done, details)),
            note=self.notes.append,
        )
        self.saved = []
        self.store = SimpleNamespace(save=self.save)
        self.context = SimpleNamespace(job=Job("train", "data", "out"), num_records=100)
        self.counts_steps = False

    def save(self, checkpoint, best):
        self.saved.append(checkpoint.step)
        return SavedCheckpoint(checkpoint.step, num_bytes=100, write_s=0.0, blocked_s=0.0)

    def records_done(self, checkpoint):
        return 0 if checkpoint is None else 40


@pytest.fixture
def run():
    return Run()


def step(number):
    rows = [(0, 0, 0, number - 1, number)]
    return StepCommitted(step=number, epoch=0, num_records=2, loss=float(number), rows=rows)


def report(first, last, *more):
    point = CommitId(last, last)
    events = [(CommitId(i, i), step(i)) for i in range(first, last + 1)]
    return WorkerReport(point, point, continues=True, events=[*events, *((point, e) for e in more)])


def snapshot(number, *, best=False):
    return StateSnapshot(CommitId(number, number), Checkpoint(number, {}, {}), best)


def test_a_late_answer_writes_nothing_twice(run):
    journal = EventWriter(run)

    # Two workers were asked for the same; the one that has gone further answers first.
    journal.take(report(1, 5))
    journal.take(report(1, 3))
    assert journal.known == CommitId(5, 5)
    journal.take(report(4, 6))
    journal.write_steps(now=True)

    (event,) = run.written
    assert (event.step, event.num_records, event.loss) == (6, 12, 3.5)
    assert event.rows == [(0, 0, 0, 0, 6)]


def test_other_events_are_written_after_the_steps_before_them(run):
    journal = EventWriter(run)
    journal.details = {"workers": "2/3"}
    finished = EpochFinished(epoch=0, step=2, metrics={})

    journal.take(report(1, 2, finished))
    journal.take(report(3, 3))
    journal.write_steps(now=True)

    assert [event.step for event in run.written] == [2, 2, 3]
    assert run.written[1] is finished
    assert [(done, shown["workers"]) for done, shown in run.shown] == [(4, "2/3"), (6, "2/3")]


def test_steps_written_together_keep_their_longest_pause(run):
    journal = EventWriter(run)
    told = report(1, 3)
    events = [(point, replace(e, longest_s=0.25 * e.step)) for point, e in told.events]

    journal.take(replace(told, events=events))
    journal.write_steps(now=True)

    assert run.written[0].longest_s == 0.75


def test_steps_of_one_second_are_written_together(run):
    journal = EventWriter(run)

    journal.take(report(1, 2))
    journal.write_steps()

    assert run.written == []


def test_a_saved_checkpoint_is_logged_with_its_blocked_time(run):
    journal = EventWriter(run)
    copied = Checkpointed(step=7, blocked_s=0.25, num_bytes=0, best=False)

    journal.take(report(1, 7, copied))
    assert [type(event) for event in run.written] == [StepCommitted]
    assert journal.save(snapshot(7, best=True))

    saved = run.written[-1]
    assert (saved.step, saved.blocked_s, saved.num_bytes, saved.best) == (7, 0.25, 100, True)


def test_events_beyond_a_checkpoint_are_written_after_it(run):
    journal = EventWriter(run)

    # The copy is of a worker that had been asked before, and answers now.
    journal.take(report(1, 5))
    assert journal.save(snapshot(3))
    journal.write_steps(now=True)

    assert [event.step for event in run.written] == [3, 3, 5]
    assert isinstance(run.written[1], Checkpointed)
    assert [event.num_records for event in (run.written[0], run.written[2])] == [6, 4]


def test_a_checkpoint_within_a_written_event_is_not_kept(run):
    journal = EventWriter(run)

    journal.take(report(1, 5))
    journal.write_steps(now=True)
    assert not journal.save(snapshot(3))
    assert run.saved == []
    # Where an event ends, one may begin again.
    assert journal.save(snapshot(5))
    journal.take(report(6, 9))
    journal.write_steps(now=True)
    assert not journal.save(snapshot(8))

    assert run.saved == [5]
    assert [event.step for event in run.written] == [5, 5, 9]


def test_a_checkpoint_within_a_later_event_is_not_kept(run):
    journal = EventWriter(run)

    for first, last in ((1, 3), (4, 8)):
        journal.take(report(first, last))
        journal.write_steps(now=True)
    assert journal.save(snapshot(3))
    assert not journal.save(snapshot(6))

    assert run.saved == [3]


def test_events_end_at_checkpoint_steps(run):
    run.context.job = replace(run.context.job, training=TrainingOptions(checkpoint_steps=4))
    journal = EventWriter(run)

    journal.take(report(1, 10))
    journal.write_steps(now=True)

    assert [event.step for event in run.written] == [4, 8, 10]
    assert journal.save(snapshot(8))


def test_a_new_round_discards_unwritten_events(run):
    journal = EventWriter(run)

    journal.take(report(1, 2))
    journal.restart(SimpleNamespace(step=1))
    assert (journal.known, journal.step) == (None, 1)
    journal.take(report(1, 1))
    journal.write_steps(now=True)

    assert [event.step for event in run.written] == [1]
    assert run.shown[-1][0] == 42


def test_an_epoch_is_one_event_with_its_evaluation_metrics(run):
    run.context.num_records = 8
    writer = EventWriter(run)
    evaluated = Evaluated(step=4, epoch=0, metrics={"loss": 0.5})
    finished = EpochFinished(epoch=0, step=4, metrics={"loss": 0.75, "val_loss": 0.5})

    writer.take(report(1, 2, Evaluated(step=2, epoch=0, metrics={"loss": 0.625})))
    writer.take(report(3, 4, evaluated))
    writer.take(WorkerReport(CommitId(5, 4), CommitId(5, 4), continues=True, events=[
        (CommitId(5, 4), finished),
        (CommitId(6, 4), EpochFinished(epoch=1, step=8, metrics=finished.metrics)),
    ]))  # fmt: skip

    assert run.notes == [
        "step 2: val_loss 0.625",
        "epoch 1/1: loss 0.75, val_loss 0.5",
        "epoch 2/1: loss 0.75",
    ]


def test_held_steps_are_written_with_the_checkpoint_that_contains_them(run):
    journal = EventWriter(run)
    finished = EpochFinished(epoch=0, step=6, metrics={})

    journal.take(report(1, 3))
    journal.hold()
    journal.take(report(4, 6, finished))
    journal.take(report(7, 9))
    journal.write_steps(now=True)
    assert [event.step for event in run.written] == [3]
    assert journal.save(snapshot(7))
    journal.release(drop=True)
    journal.write_steps(now=True)

    # A resumed run repeats steps 8 and 9.
    written = [(type(event), event.step) for event in run.written[1:]]
    assert written == [
        (StepCommitted, 6), (EpochFinished, 6), (StepCommitted, 7), (Checkpointed, 7),
    ]  # fmt: skip


def test_held_steps_are_written_if_no_checkpoint_comes(run):
    journal = EventWriter(run)

    journal.hold()
    journal.take(report(1, 3))
    journal.release(drop=False)
    journal.write_steps(now=True)

    assert [event.step for event in run.written] == [3]
