"""A step over several workers is one update, the same on all of them, or nothing at all."""

import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.engines.elastic.counting import CountingTrainer, batch_of

from elasticdl.engines.elastic.committer import (
    DriftError,
    ElasticCommitter,
    Layout,
    SupersededError,
)
from elasticdl.engines.elastic.event_buffer import CommitId, EventBuffer
from elasticdl.engines.feed import TrainingBatch
from elasticdl.engines.train_progress import TrainProgress
from elasticdl.errors import DefinitionError, NonFiniteLossError
from elasticdl.sharding.ledger import LeaseUpdate, Ledger
from elasticdl.sharding.left_out import BatchId

PLACE = TrainProgress(Ledger(num_shards=4))
START = CommitId(0, 3)


class Table:
    """Where workers in threads lay their buffers down and take the sum."""

    def __init__(self, num_workers):
        self._buffers = []
        self._all_here = threading.Barrier(num_workers, action=self._add_up)
        self._all_gone = threading.Barrier(num_workers)

    def _add_up(self):
        # As on wires: an overflow is infinity and no warning.
        with np.errstate(over="ignore"):
            self._sum = np.sum(self._buffers, axis=0, dtype=np.float32)
        self._buffers = []

    def sum(self, buffer):
        self._buffers.append(buffer.copy())
        self._all_here.wait(10)
        buffer[:] = self._sum
        self._all_gone.wait(10)


class FakeQuorum:
    """A `Quorum` over a table in memory."""

    def __init__(self, table):
        self._table = table
        self.num_commits = 0
        self.sums, self.commits = True, True
        self.gave_up_state = False
        self.is_old = False
        self.num_asked = 0
        self.votes = []
        self.received = []

    def begin(self):
        self.num_asked += 1

    def wait(self):
        # As in the thread of the real one: a peer's state comes with the quorum.
        for data in self.received:
            self.receive(data)
        self.received = []

    def sum(self, buffer):
        self._table.sum(buffer)
        if not self.sums:
            buffer[:] = np.nan
        return self.sums

    def vote(self, *, commit):
        self.votes.append(commit)
        committed = commit and self.commits
        self.num_commits += committed
        return committed

    def give_up_state(self):
        self.gave_up_state = True


class Fleet:
    """Workers that make one step together."""

    def __init__(self, num_workers, num_records=10):
        table = Table(num_workers)
        self.taken_over = []
        self.trainers = [CountingTrainer(num_records) for _ in range(num_workers)]
        self.quorums = [FakeQuorum(table) for _ in range(num_workers)]
        self.histories = [EventBuffer(START) for _ in range(num_workers)]
        self.committers = [
            ElasticCommitter(trainer, batch_of(9), evaluated=batch_of(9), num_ranks=num_workers)
            for trainer in self.trainers
        ]
        for rank in range(num_workers):
            self.enter(rank)

    def enter(self, worker, rank=None, incarnation=None):
        self.committers[worker].enter(
            self.quorums[worker],
            self.histories[worker],
            worker if rank is None else rank,
            worker + 1 if incarnation is None else incarnation,
            self.taken_over.append,
        )
        self.quorums[worker].receive = self.committers[worker].receive

    def commit(self, *batches, stops=(), progress=PLACE, **fields):
        """Make a step; None stands for a worker without a batch. Returns results and errors."""
        feds = [
            [] if b is None else [replace(TrainingBatch(0, i, 0, b, finished=False), **fields)]
            for i, b in enumerate(batches)
        ]
        return self._together(lambda i, c: c.commit(feds[i], progress, stop=i in stops))

    def evaluate(self, *states_and_rows, begins=True):
        return self._together(lambda i, c: c.commit_evaluation(*states_and_rows[i], begins=begins))

    def _together(self, act):
        results = [None] * len(self.committers)

        def run(i):
            try:
                results[i] = act(i, self.committers[i])
            except Exception as error:  # noqa: BLE001 - handed back
                results[i] = error

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def assert_nothing_happened(self):
        for trainer, history in zip(self.trainers, self.histories, strict=True):
            assert trainer.step == 0
            assert not trainer.seen.any()
            assert history.point == START


def count_gradients(fleet):
    """Return a list that grows with each batch whose gradients are computed."""
    calls = []
    for trainer in fleet.trainers:

        def counted(batch, gradients=trainer.gradients):
            calls.append(batch)
            return gradients(batch)

        trainer.gradients = counted
    return calls


def test_preparing_leaves_no_trace_in_the_model():
    Fleet(2).assert_nothing_happened()


def test_a_batch_is_weighted_by_its_examples():
    fleet = Fleet(2)

    fleet.commit(batch_of(0, 1, 2, labels=[1, 1, 1]), batch_of(3, labels=[5]))

    # The mean over the examples is 2; a mean of the workers' means would be 3.
    assert [float(t.mean) for t in fleet.trainers] == [2.0, 2.0]
    for trainer in fleet.trainers:
        np.testing.assert_array_equal(trainer.seen[:5], [1, 1, 1, 1, 0])


def test_a_step_is_one_update_for_any_number_of_workers():
    fleet = Fleet(3)

    fleet.commit(batch_of(0), batch_of(1), batch_of(2))

    assert [t.step for t in fleet.trainers] == [1, 1, 1]


def test_a_worker_without_a_batch_also_applies_the_update():
    fleet = Fleet(3)
    # What it added before must not be added again.
    fleet.commit(batch_of(0), batch_of(1), batch_of(2, labels=[64]))
    for trainer in fleet.trainers:
        trainer.mean = np.float32(0)

    results = fleet.commit(batch_of(4, labels=[6]), None, batch_of(5, labels=[8]))

    assert [float(t.mean) for t in fleet.trainers] == [7.0] * 3
    assert [float(c.metrics["loss"][1]) for c in results] == [2.0] * 3
    assert results[1].rows == [LeaseUpdate(0, 1, finished=False), LeaseUpdate(2, 1, finished=False)]
    assert list(results[1].ranks) == [0, 1, 2]


def test_a_step_without_any_batch_counts_but_changes_no_weight():
    fleet = Fleet(2)

    results = fleet.commit(None, None)

    assert [t.step for t in fleet.trainers] == [0, 0]
    assert [dict(c.metrics) for c in results] == [{}, {}]
    assert {h.point.num_commits for h in fleet.histories} == {1}


def test_a_shard_without_a_batch_is_reported_as_finished():
    fleet = Fleet(2)
    shard = [TrainingBatch(0, 0, 0, None, finished=True, digest=7)]

    results = fleet._together(lambda i, c: c.commit([] if i else shard, PLACE, stop=False))

    assert results[1].rows == [LeaseUpdate(0, 0, finished=True, digest=7)]


def test_metric_states_are_summed_over_all_workers():
    fleet = Fleet(2)

    results = fleet.commit(batch_of(0, 1, labels=[2, 4]), batch_of(3, labels=[10]))

    assert [[float(x) for x in c.metrics["loss"]] for c in results] == [[16.0, 3.0]] * 2


def test_all_workers_reach_the_same_point_after_a_commit():
    fleet = Fleet(3)

    fleet.commit(batch_of(0), None, batch_of(1))
    fleet.commit(batch_of(2), batch_of(3), None)

    points = {history.point for history in fleet.histories}
    assert len(points) == 1
    assert points.pop().num_commits == 2


def test_the_lowest_rank_leads():
    fleet = Fleet(2)
    assert [c.leads() for c in fleet.committers] == [False, False]

    fleet.commit(batch_of(0), batch_of(1))

    assert [c.leads() for c in fleet.committers] == [True, False]


# --- who takes part is asked now and then ---------------------------------------------------------


def step_of(fleet):
    """Make a step from its beginning; returns how often each worker has asked by now."""
    for committer in fleet.committers:
        committer.begin(ahead=True)
    fleet.commit(*[None] * len(fleet.committers))
    return [quorum.num_asked for quorum in fleet.quorums]


def test_a_quorum_is_kept_until_a_member_requests_another():
    fleet = Fleet(3)

    asked = [step_of(fleet), step_of(fleet)]
    fleet.quorums[1].is_old = True
    asked.append(step_of(fleet))
    fleet.quorums[1].is_old = False
    asked += [step_of(fleet), step_of(fleet)]

    # It says so with the third step, and all of them do it before the fourth.
    assert asked == [[1] * 3, [1] * 3, [1] * 3, [2] * 3, [2] * 3]


@pytest.mark.parametrize("what", ["sums", "commits"])
def test_a_failed_step_is_followed_by_a_new_quorum(what):
    fleet = Fleet(2)
    step_of(fleet)
    setattr(fleet.quorums[0], what, False)

    asked = [step_of(fleet)]
    setattr(fleet.quorums[0], what, True)
    asked.append(step_of(fleet))

    # The other one learns it from its next sum.
    assert asked == [[1, 1], [2, 1]]


def test_a_step_refused_by_all_is_followed_by_a_new_quorum():
    fleet = Fleet(3)
    step_of(fleet)
    fleet.histories[1].take_over({"points": [[0, 99]], "events": []})
    step_of(fleet)

    assert step_of(fleet) == [2, 2, 2]


# --- no agreement, no trace ---------------------------------------------------------------------


def test_a_failed_sum_leaves_no_trace():
    fleet = Fleet(2)
    for quorum in fleet.quorums:
        quorum.sums = False

    assert fleet.commit(batch_of(0), batch_of(1)) == [None, None]

    assert [q.votes for q in fleet.quorums] == [[False], [False]]
    fleet.assert_nothing_happened()


def test_a_failed_vote_leaves_no_trace_and_can_be_repeated():
    fleet = Fleet(2)
    for quorum in fleet.quorums:
        quorum.commits = False
    assert fleet.commit(batch_of(0), batch_of(1)) == [None, None]
    fleet.assert_nothing_happened()

    for quorum in fleet.quorums:
        quorum.commits = True
    fleet.commit(batch_of(0), batch_of(1))

    for trainer in fleet.trainers:
        np.testing.assert_array_equal(trainer.seen, [1, 1, *[0] * 8])


def test_gradients_are_reused_if_the_step_did_not_commit():
    fleet = Fleet(2)
    feds = [[TrainingBatch(0, i, 0, batch_of(i), finished=False)] for i in range(2)]
    calls = count_gradients(fleet)
    for quorum in fleet.quorums:
        # What comes back of a sum that fails is no gradient any more.
        quorum.sums = False
    make = partial(fleet._together, lambda i, c: c.commit(feds[i], PLACE, stop=False))
    assert [make(), make()] == [[None, None]] * 2
    for quorum in fleet.quorums:
        quorum.sums = True

    make()

    assert len(calls) == 2
    for trainer in fleet.trainers:
        np.testing.assert_array_equal(np.flatnonzero(trainer.seen), [0, 1])

    # The same batch in the next epoch is another one: the weights have moved.
    make()
    assert len(calls) == 4


def test_gradients_are_not_reused_after_taking_over_a_state():
    fleet = Fleet(1)
    fed = [TrainingBatch(0, 0, 0, batch_of(1), finished=False)]
    calls = count_gradients(fleet)
    (committer,) = fleet.committers
    committer.begin(ahead=False)
    fleet.quorums[0].commits = False
    assert committer.commit(fed, PLACE, stop=False) is None
    fleet.quorums[0].commits = True
    fleet.quorums[0].received = [b"a peer's state"]
    committer.begin(ahead=False)

    assert committer.commit(fed, PLACE, stop=False) is not None

    assert len(calls) == 2


def test_workers_with_another_history_heal_without_a_commit():
    fleet = Fleet(3)
    fleet.histories[1].take_over({"points": [[0, 99]], "events": []})

    assert fleet.commit(batch_of(0), batch_of(1), batch_of(2)) == [None] * 3

    assert [q.gave_up_state for q in fleet.quorums] == [False, True, False]
    assert [q.votes for q in fleet.quorums] == [[False]] * 3
    assert not any(t.step for t in fleet.trainers)


def test_the_older_of_two_processes_in_a_rank_ends():
    fleet = Fleet(3)
    fleet.enter(2, rank=1, incarnation=9)

    other, older, younger = fleet.commit(batch_of(0), batch_of(1), batch_of(1))

    assert isinstance(older, SupersededError)
    assert (other, younger) == (None, None)
    fleet.assert_nothing_happened()


def test_different_weights_after_one_history_end_the_job():
    fleet = Fleet(3)
    fleet.trainers[1].mean = np.float32(1e-3)

    results = fleet.commit(batch_of(0), batch_of(1), batch_of(2))

    assert [type(r) for r in results] == [DriftError] * 3
    assert "The weights of ranks 1 differ from those of rank 0" in str(results[2])
    assert not any(t.step for t in fleet.trainers)


def test_weights_are_compared_after_1_2_4_commits_and_when_an_epoch_or_an_evaluation_begins():
    fleet, within = Fleet(2), replace(PLACE, epoch_examples=10)
    committer, compared = fleet.committers[0], []
    fingerprint = committer._fingerprint

    def counted():
        compared.append(fleet.histories[0].point.num_commits)
        return fingerprint()

    committer._fingerprint = counted
    for number in range(10):
        fleet.commit(batch_of(0), batch_of(1), progress=PLACE if number == 6 else within)
    for begins in (True, False):
        fleet.evaluate(({}, None), ({}, None), begins=begins)

    assert compared == [0, 1, 2, 4, 6, 8, 10]


def test_the_error_of_different_weights_names_the_step_at_which_they_were_equal():
    fleet, within = Fleet(2), replace(PLACE, epoch_examples=10)
    for _ in range(3):
        fleet.commit(batch_of(0), batch_of(1), progress=within)
    fleet.trainers[1].mean = np.float32(1e-3)

    results = fleet.commit(batch_of(0), batch_of(1), progress=within)
    assert not any(isinstance(each, DriftError) for each in results)
    results = fleet.commit(batch_of(0), batch_of(1), progress=within)

    assert [type(each) for each in results] == [DriftError] * 2
    assert "The weights were equal at step 2; later checkpoints" in str(results[0])


@pytest.mark.parametrize("label", [np.nan, np.inf, -np.inf, 3e38])
def test_a_loss_that_is_not_finite_ends_the_job_before_any_update(label):
    fleet = Fleet(2)

    # Two of the last overflow in the sum only.
    results = fleet.commit(batch_of(0, labels=[label]), batch_of(1, labels=[label]))

    assert [type(r) for r in results] == [NonFiniteLossError] * 2
    assert "at step 1 (epoch 1)" in str(results[0])
    fleet.assert_nothing_happened()


# --- what else travels --------------------------------------------------------------------------


def test_a_dead_rank_is_reported_until_all_have_committed_it():
    fleet = Fleet(2)
    fleet.committers[1].report_lost(5)
    for quorum in fleet.quorums:
        quorum.commits = False
    assert fleet.commit(None, None) == [None, None]
    for quorum in fleet.quorums:
        quorum.commits = True

    told = [[list(c.lost) for c in fleet.commit(None, None)] for _ in range(2)]

    assert told == [[[5], [5]], [[], []]]


def test_dead_ranks_are_reported_one_after_the_other():
    fleet = Fleet(1)
    fleet.committers[0].report_lost(5)
    fleet.committers[0].report_lost(6)

    told = [list(fleet.commit(None)[0].lost) for _ in range(3)]

    assert told == [[5], [6], []]


def test_a_rank_that_returns_is_not_lost():
    fleet = Fleet(2)
    fleet.committers[0].report_lost(1)

    told = [[list(c.lost) for c in fleet.commit(None, None)] for _ in range(2)]

    assert told == [[[], []], [[], []]]


def test_a_callback_of_the_lowest_rank_ends_training_for_all():
    fleet = Fleet(2)

    results = fleet.commit(None, batch_of(1), stops=[0])

    assert [c.stop for c in results] == [True, True]
    assert [c.rows for c in results] == [[], []]
    for trainer in fleet.trainers:
        np.testing.assert_array_equal(trainer.seen, np.zeros(len(trainer.seen)))


def test_evaluation_results_are_summed_and_change_no_weight():
    fleet = Fleet(3)
    loss = {"loss": (np.float64(6), np.float64(3))}

    results = fleet.evaluate(
        (loss, LeaseUpdate(0, 0, finished=True)),
        ({}, None),
        (loss, LeaseUpdate(2, 0, finished=True)),
    )

    for commit in results:
        assert [float(x) for x in commit.metrics["loss"]] == [12.0, 6.0]
        assert commit.rows == [LeaseUpdate(0, 0, finished=True), LeaseUpdate(2, 0, finished=True)]
    assert not any(t.step for t in fleet.trainers)
    assert {h.point.num_commits for h in fleet.histories} == {1}


def test_metric_states_of_any_shape_keep_their_positions():
    states = {
        "matrix": (np.arange(6.0).reshape(2, 3), np.float64(7)),
        "a": (np.float64(8), np.arange(2.0)),
    }
    layout = Layout(states)
    buffer = np.zeros(layout.size, np.float32)

    layout.write(dict(reversed(states.items())), buffer)
    read = layout.read(buffer)

    assert layout.size == 10
    assert list(read) == ["matrix", "a"], "in the order in which users read them"
    for name, arrays in states.items():
        for mine, other in zip(read[name], arrays, strict=True):
            assert mine.dtype == np.float64
            np.testing.assert_array_equal(mine, other)


def test_missing_metrics_add_nothing_and_unexpected_ones_are_refused():
    layout = Layout({"loss": (np.float64(1), np.float64(2)), "b": (np.float64(3), np.float64(4))})
    buffer = np.zeros(layout.size, np.float32)

    layout.write({"loss": (np.float64(5), np.float64(6))}, buffer)

    assert [float(x) for arrays in layout.read(buffer).values() for x in arrays] == [5, 6, 0, 0]
    with pytest.raises(DefinitionError, match="'accuracy' is reported on some batches but not"):
        layout.write({"accuracy": (np.float64(5), np.float64(6))}, buffer)


def test_a_worker_contributes_after_taking_over_a_state():
    """The gradient it has computed belongs to an outdated state."""
    fleet = Fleet(1)
    (committer,) = fleet.committers
    fleet.quorums[0].is_old = True
    fleet.commit(batch_of(0))
    fleet.quorums[0].received = [b"a peer's state"]

    committer.begin(ahead=True)
    (nothing,) = fleet.commit(batch_of(1))

    assert nothing is None
    assert fleet.taken_over == [b"a peer's state"]
    assert fleet.quorums[0].votes == [True]
    # The quorum still stands: no other is looked for before the commit.
    fleet.quorums[0].begin = None
    committer.begin(ahead=True)
    (commit,) = fleet.commit(batch_of(2))
    assert [row.num_batches for row in commit.rows] == [1]
    np.testing.assert_array_equal(np.flatnonzero(fleet.trainers[0].seen), [0, 2])


def test_a_joining_worker_computes_nothing_before_it_has_a_state():
    fleet = Fleet(1)
    fleet.quorums[0].received = [b"a peer's state"]

    fleet.committers[0].begin(ahead=True)

    assert fleet.taken_over == [b"a peer's state"]


def test_a_state_is_not_copied_while_gradients_change_statistics():
    fleet = Fleet(1)
    (committer,), (trainer,) = fleet.committers, fleet.trainers
    order, peers = [], []
    careful = trainer.gradients

    def gradients(batch):
        peer = threading.Thread(
            target=committer.state_for_a_peer, args=(lambda: order.append("state") or b"",)
        )
        peers.append(peer)
        peer.start()
        peer.join(0.1)
        order.append("gradients")
        return careful(batch)

    trainer.gradients = gradients
    fleet.commit(batch_of(1))
    peers[-1].join()

    assert order == ["gradients", "state"]


def test_preparing_does_not_step_a_pytorch_optimizer():
    import torch
    from tests.training.torch import conftest as of_torch

    calls = []

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            calls.append(closure)
            super().step(closure)

    definition = of_torch.definition_of(optimizer=lambda p: Counting(p, 0.1))
    trainer, batch = of_torch.trainer_of(definition), of_torch.batch_of(8)
    before = trainer.state()
    ElasticCommitter(trainer, batch, evaluated=batch, num_ranks=2)
    assert not calls
    assert of_torch.same_bits(trainer.state(), before)

    trainer.apply(trainer.gradients(batch)[0])
    trainer.load_state(trainer.state())
    assert len(calls) == 1


def test_a_bad_batch_known_to_one_worker_is_skipped_by_all():
    fleet = Fleet(2)
    computed = count_gradients(fleet)
    fleet.committers[1].leave_out([BatchId(0, 1, 0)])

    # Of shard 0, and of shard 1 the very batch.
    told = fleet.commit(batch_of(0), batch_of(5))
    later = fleet.commit(batch_of(1), None)

    assert [c.left_out for c in told] == [(BatchId(0, 1, 0),)] * 2
    assert [c.left_out for c in later] == [()] * 2
    assert len(computed) == 2
    assert [t.seen.nonzero()[0].tolist() for t in fleet.trainers] == [[0, 1]] * 2


def test_an_empty_batch_counts_without_an_update():
    fleet = Fleet(2)
    empty = [TrainingBatch(0, 0, 0, None, finished=False, num_left_out=16)]

    commits = fleet._together(lambda i, c: c.commit([] if i else empty, PLACE, stop=False))

    assert [c.rows for c in commits] == [[LeaseUpdate(0, 1, finished=False)]] * 2
    assert [c.num_left_out for c in commits] == [16, 16]
    assert [t.step for t in fleet.trainers] == [0, 0]
    assert not any(t.seen.any() for t in fleet.trainers)
