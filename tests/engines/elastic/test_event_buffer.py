"""An event is told once, when it is certain, by whoever is asked."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.artifacts.checkpoint_store import Checkpoint
from elasticdl.engines.elastic.event_buffer import CommitId, EventBuffer, SnapshotBuffer
from elasticdl.events import Evaluated, StepCommitted

START = CommitId(0, 77)


def point(number, lineage=None):
    return CommitId(number, 1000 + number if lineage is None else lineage)


def step(number):
    return StepCommitted(step=number, epoch=0, num_records=4, loss=1.0, rows=((0, 1, 2, 0, 1),))


def history_of(num_commits):
    """Return a history with one event a commit."""
    history = EventBuffer(START)
    for number in range(1, num_commits + 1):
        commit(history, number)
    return history


def commit(history, number, lineage=None):
    history.committed(point(number, lineage))
    history.write(step(number))


def steps(events):
    return [event.step for _, event in events]


# --- History ------------------------------------------------------------------------------------


def test_an_event_is_unconfirmed_before_the_second_commit():
    history = EventBuffer(START)
    history.write(step(0))
    assert history.since(None) == (True, START, [])

    commit(history, 1)
    continues, confirmed, events = history.since(None)

    assert (continues, confirmed, steps(events)) == (True, START, [0])


def test_a_commit_is_returned_when_the_next_one_confirms_it():
    continues, confirmed, events = history_of(3).since(None)

    assert continues
    assert confirmed == point(2)
    assert [p for p, _ in events] == [point(1), point(2)]
    assert steps(events) == [1, 2]


def test_the_last_commit_is_returned_when_nothing_follows():
    history = history_of(3)
    history.finish()

    assert history.since(None)[1] == point(3)
    assert steps(history.since(None)[2]) == [1, 2, 3]


def test_a_run_that_ends_before_its_first_commit_returns_everything():
    history = EventBuffer(START)
    history.write(step(0))
    history.finish()

    continues, confirmed, events = history.since(None)

    assert (continues, confirmed, steps(events)) == (True, START, [0])


def test_only_events_after_the_known_point_are_returned():
    assert steps(history_of(5).since(point(2))[2]) == [3, 4]


def test_events_of_one_commit_are_returned_together_in_order():
    history = history_of(1)
    history.write(Evaluated(step=1, epoch=0, metrics={"loss": 2.0}))
    history.committed(point(2))

    assert [type(e) for _, e in history.since(START)[2]] == [StepCommitted, Evaluated]
    assert history.since(point(1))[2] == []


def test_acknowledged_events_are_discarded():
    history = history_of(5)
    history.since(point(3))

    kept = history.to_json()

    assert [number for number, _ in kept["points"]] == [3, 4, 5]
    assert [number for number, _, _ in kept["events"]] == [4, 5]


def test_unacknowledged_events_are_returned_again():
    history = history_of(4)

    assert steps(history.since(point(1))[2]) == steps(history.since(point(1))[2]) == [2, 3]


@pytest.mark.parametrize("known", [point(2, lineage=5), point(9)], ids=["a fork", "ahead"])
def test_a_history_without_the_known_point_returns_nothing(known):
    history = history_of(4)

    assert history.since(known) == (False, point(3), [])
    # Nothing was forgotten for it.
    assert steps(history.since(None)[2]) == [1, 2, 3]


def test_a_worker_that_takes_over_returns_the_events_of_its_peer():
    peer, mine = history_of(5), EventBuffer(CommitId(0, 1))
    mine.write(step(99))
    peer.since(point(2))

    mine.take_over(json.loads(json.dumps(peer.to_json())))

    assert mine.point == point(5)
    assert mine.since(point(2)) == peer.since(point(2))
    assert steps(mine.since(point(2))[2]) == [3, 4]
    commit(mine, 6)
    assert steps(mine.since(point(4))[2]) == [5]
    assert peer.point == point(5)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=30))
def test_each_event_is_returned_once_by_any_sequence_of_workers(moments):
    """Two workers commit alike; at some moments one of them is queried or replaced."""
    workers = [EventBuffer(START), EventBuffer(START)]
    known, told = None, []
    for number, (asked, which, replaced) in enumerate(moments, 1):
        for worker in workers:
            commit(worker, number)
        if replaced:
            joined = EventBuffer(START)
            joined.take_over(workers[which].to_json())
            workers[not which] = joined
        if asked:
            continues, known, events = workers[which].since(known)
            assert continues
            told += steps(events)
    workers[0].finish()

    told += steps(workers[0].since(known)[2])

    assert told == list(range(1, len(moments) + 1))


# --- Snapshots ----------------------------------------------------------------------------------


@dataclass
class Run:
    """A worker that commits and keeps snapshots."""

    history: EventBuffer
    snapshots: SnapshotBuffer
    number: int = 0

    def commit(self, lineage=None):
        self.number += 1
        commit(self.history, self.number, lineage)

    def save(self, *, best=False):
        state = {"w": np.float32([self.number])}
        self.snapshots.save_in_background(Checkpoint(self.number, state, {}), best=best)

    def take(self):
        _, confirmed, _ = self.history.since(None)
        waiting = self.snapshots.next_to_fetch(confirmed)
        snapshot = self.snapshots.take(confirmed)
        assert snapshot is waiting
        return snapshot and (snapshot.checkpoint.step, snapshot.best)


@pytest.fixture
def run():
    history = EventBuffer(START)
    return Run(history, SnapshotBuffer(history))


def test_a_snapshot_is_returned_once_after_its_state_is_confirmed(run):
    run.commit()
    run.save()
    assert run.take() is None

    run.commit()

    assert run.take() == (1, False)
    assert run.take() is None


def test_a_snapshot_knows_its_place_in_the_history(run):
    run.commit()
    run.save()
    run.commit()

    snapshot = run.snapshots.take(point(1))

    assert snapshot.point == point(1)
    np.testing.assert_array_equal(snapshot.checkpoint.state["w"], [1.0])


def test_the_first_state_can_be_kept_too(run):
    run.save()

    assert run.snapshots.next_to_fetch(START).checkpoint.step == 0


def test_a_newer_snapshot_replaces_one_that_was_not_fetched(run):
    for _ in range(3):
        run.commit()
        run.save()
        run.commit()

    assert run.take() == (5, False)
    assert run.take() is None


def test_the_best_snapshot_is_kept_beside_the_newest(run):
    run.commit()
    run.save(best=True)
    run.commit()
    run.save()
    run.commit()
    run.save()
    run.commit()

    assert [run.take(), run.take(), run.take()] == [(1, True), (3, False), None]


def test_a_better_snapshot_replaces_all(run):
    run.commit()
    run.save(best=True)
    run.commit()
    run.save()
    run.commit()
    run.save(best=True)
    run.commit()
    run.commit()

    assert [run.take(), run.take()] == [(3, True), None]


def test_snapshots_of_every_commit_are_returned_during_the_run(run):
    taken = []
    for _ in range(5):
        run.commit()
        run.save()
        taken.append(run.take())

    assert taken == [None, *((number, False) for number in (1, 2, 3, 4))]


def test_memory_holds_few_unfetched_snapshots(run):
    for number in range(20):
        run.commit()
        run.save(best=number % 3 == 0)

    assert len(run.snapshots._waiting) <= 3


def test_a_snapshot_of_an_abandoned_history_is_never_returned(run):
    peer = history_of(8)
    for _ in range(3):
        run.commit()
    run.commit(lineage=5)
    run.save(best=True)

    run.history.take_over(peer.to_json())

    assert run.history.since(None)[1] == point(7)
    assert run.take() is None


def test_a_confirmed_snapshot_survives_healing(run):
    peer = history_of(8)
    peer.since(point(6))
    run.commit()
    run.save(best=True)
    run.commit()
    run.commit(lineage=5)

    run.history.take_over(peer.to_json())

    assert run.take() == (1, True)


def test_a_request_is_fulfilled_by_the_next_snapshot(run):
    run.snapshots.requested = True
    run.commit()
    run.save()

    assert not run.snapshots.requested


def test_a_saved_step_is_reported_once(run):
    run.save()

    assert [saved.step for saved in run.snapshots.take_saved()] == [0]
    assert run.snapshots.take_saved() == []
