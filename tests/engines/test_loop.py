"""When the loop ends, and what it asks of the feed when it goes on from the state of a peer."""

import itertools
from dataclasses import replace

import pytest
from tests.engines.elastic.counting import CountingTrainer, batch_of

from elasticdl.engines.elastic.event_buffer import CommitId, EventBuffer, SnapshotBuffer
from elasticdl.engines.feed import TrainingBatch
from elasticdl.engines.interfaces import Commit
from elasticdl.engines.loop import Loop
from elasticdl.engines.progress_bar import Silent
from elasticdl.engines.train_progress import EvaluationProgress, TrainProgress
from elasticdl.events import Checkpointed, RecordsSkipped
from elasticdl.job import TrainingOptions
from elasticdl.sharding.ledger import LeaseUpdate, Ledger
from elasticdl.sharding.left_out import BatchId


class Alone:
    """Commits what it gets.

    Args:
        leads: Its callbacks may end the training.
        will_lead: It learns so in its first commit.

    Attributes:
        stops: Whether they asked for the end, in each commit.
    """

    max_group_steps, patience_steps = 1, 50

    def __init__(self, *, leads, will_lead=False):
        self._leads, self._will_lead, self.stops = leads, will_lead, []

    def leads(self):
        return self._leads

    def begin(self, *, ahead):
        pass

    def commit(self, batches, progress, *, stop):
        self.stops.append(stop)
        self._leads = self._leads or self._will_lead
        if stop and self._leads:
            return Commit([], [0], stop=True)
        rows = [LeaseUpdate(0, 1, finished=batches[0].finished)] if batches else []
        return Commit(rows, [0], {"loss": (0.0, 1.0)} if batches else {})


def loop_of(rank, open_feed, *, leads=False, will_lead=False, **options):
    history = EventBuffer(CommitId(0, 1))
    return Loop(
        options=TrainingOptions(**options),
        trainer=CountingTrainer(20),
        committer=Alone(leads=leads, will_lead=will_lead),
        open_feed=open_feed,
        rank=rank,
        num_records=20,
        events=history,
        checkpoints=SnapshotBuffer(history),
        checkpoint_metadata={},
        reporter=Silent(),
        validation=None,
        progress=TrainProgress(Ledger(2, 10)),
        safe_point=lambda: None,
        event_interval_s=0.0,
        ranks=[0],
    )


def whole_shards(ledger, ranks):
    """Make one batch of each shard, for ever."""
    for epoch in itertools.count(ledger.epoch):
        for shard in range(2):
            yield TrainingBatch(epoch, shard, 0, batch_of(10 * shard), finished=True)


@pytest.mark.parametrize(("leads", "num_epochs"), [(True, 2), (False, 5)])
def test_callbacks_of_one_worker_decide_at_the_end_of_an_epoch(leads, num_epochs):
    loop = loop_of(0, whole_shards, leads=leads, num_epochs=5)
    begun = []

    def ask_for_the_end(epoch, logs):
        loop.trainer.hooks.stop_requested = epoch == 1

    loop.trainer.hooks.epoch_begin = begun.append
    loop.trainer.hooks.epoch_end = ask_for_the_end
    loop.run()

    assert begun == list(range(num_epochs))
    assert loop.progress.stopped == leads


def test_a_worker_that_takes_over_at_the_end_begins_no_epoch():
    def ask_for_the_end(epoch, logs):
        first.trainer.hooks.stop_requested = True

    first = loop_of(0, whole_shards, leads=True, num_epochs=5)
    first.trainer.hooks.epoch_end = ask_for_the_end
    first._assign([0])
    while first._prepare_commit() and not first.progress.ledger.epoch:
        first._advance()
    begun = []
    # Which rank is the lowest is known from the first commit on.
    second = loop_of(0, whole_shards, will_lead=True, num_epochs=5)
    second.resume(first.checkpoint())
    second.trainer.hooks.stop_requested = True
    second.trainer.hooks.epoch_begin = begun.append
    second.run()

    assert (second.progress.stopped, second.progress.ledger.epoch, begun) == (True, 1, [])


def test_a_non_leading_worker_forwards_a_stop_request():
    # It has joined in the lowest rank, or the one there has died: the next commit is led by it.
    loop = loop_of(0, whole_shards, leads=False, num_epochs=2)

    def ask_for_the_end(epoch, logs):
        loop.trainer.hooks.stop_requested = epoch == 0

    loop.trainer.hooks.epoch_end = ask_for_the_end
    loop.run()

    assert loop.committer.stops == [False, False, True, True]
    assert loop.progress.ledger.epoch == 2


def test_a_metric_with_val_in_its_name_is_not_a_validation_metric():
    loop = loop_of(0, whole_shards)
    loop.metrics = {"interval_error": 1.0, "val_loss": 2.0}
    ended = []
    loop.trainer.hooks.test_end = ended.append
    # A peer's state was taken over during an evaluation, which the peer had finished.
    loop._begin_test()
    loop._match_evaluation()

    assert ended == [{"loss": 2.0}]


class Losing(Alone):
    """Makes a step of each batch, with losses that are known before."""

    def __init__(self, losses):
        super().__init__(leads=True)
        self._losses = iter(losses)
        self.trainer = None

    def commit(self, batches, progress, *, stop):
        self.trainer.step += 1
        commit = super().commit(batches, progress, stop=stop)
        return replace(commit, metrics={"loss": (next(self._losses), 1.0)})


class Grouping(Alone):
    """Makes a group of steps of what it gets; `groups` has their sizes."""

    max_group_steps = 4

    def __init__(self, trainer):
        super().__init__(leads=True)
        self._trainer, self.groups = trainer, []

    def commit(self, batches, progress, *, stop):
        if stop:
            return super().commit(batches, progress, stop=stop)
        self.groups.append(len(batches))
        self._trainer.step += len(batches)
        row = LeaseUpdate(0, len(batches), finished=batches[-1].finished)
        return Commit([row], [0], {"loss": (0.0, 1.0)})


def test_a_stop_at_the_beginning_of_an_epoch_takes_one_more_step():
    def batches(ledger, ranks):
        for epoch, shard, number in itertools.product(range(3), range(2), range(10)):
            yield TrainingBatch(epoch, shard, number, batch_of(shard), finished=number == 9)

    def ask_for_the_end(epoch):
        loop.trainer.hooks.stop_requested = epoch == 1

    loop = loop_of(0, batches, num_epochs=3)
    loop.committer = Grouping(loop.trainer)
    loop.trainer.hooks.epoch_begin = ask_for_the_end
    loop.run()

    assert max(loop.committer.groups) == 4
    assert loop.trainer.step == 20 + 1


def test_the_best_step_is_known_at_the_end_and_to_joining_workers():
    loop = loop_of(0, whole_shards, leads=True, num_epochs=3, best_metric="loss")
    # Two steps an epoch, whose means are 3, 1 and 2.
    loop.committer = Losing([3.0, 3.0, 1.0, 1.0, 2.0, 2.0])
    loop.committer.trainer = loop.trainer
    kept, save = [], loop.checkpoints.save_in_background

    def save_and_note(checkpoint, *, best=False):
        kept.append((checkpoint.step, best, loop.is_best))
        save(checkpoint, best=best)

    loop.checkpoints.save_in_background = save_and_note
    loop.run()
    joining = loop_of(1, whole_shards)
    joining.join(loop.checkpoint())

    assert kept == [(2, True, True), (4, True, True), (6, False, False)]
    told = [event for _, event in loop.events._events if isinstance(event, Checkpointed)]
    assert [(event.step, event.best) for event in told] == [(2, True), (4, True), (6, False)]
    assert (joining.progress.best, joining.progress.best_step, joining.is_best) == (1.0, 4, False)


def test_a_checkpoint_keeps_its_own_copy_of_metrics():
    loop = loop_of(0, whole_shards)
    loop.metrics["loss"] = 0.5
    checkpoint = loop.checkpoint()

    loop.metrics["loss"] = 0.9

    assert checkpoint.metadata["metrics"] == {"loss": 0.5}


def test_a_worker_that_takes_over_a_piece_is_in_its_forecast():
    asked = []

    def open_feed(ledger, ranks):
        asked.append(set(ranks))
        yield TrainingBatch(0, 1, 0, batch_of(10), finished=False)

    peer = loop_of(0, open_feed)
    # Rank 1 has a lease in hand and took no part in the last commit: its worker is gone.
    peer.progress, peer.ranks = TrainProgress(Ledger(2, 10).assign([0, 1])), [0]
    replacement = loop_of(1, open_feed)

    replacement.join(peer.checkpoint())
    replacement._next_group()

    assert asked == [{0, 1}]
    replacement.close_feed()


@pytest.mark.parametrize(
    ("epoch", "epoch_begun", "expected"), [(0, True, 0), (3, True, 3), (3, False, 2), (0, False, 0)]
)
def test_a_joining_worker_knows_the_current_epoch(epoch, epoch_begun, expected):
    peer, joining = loop_of(0, whole_shards), loop_of(1, whole_shards)
    ledger = Ledger(2, 10, epoch=epoch)
    peer.progress = TrainProgress(ledger, epoch_begun=epoch_begun, first_step=2 * epoch)

    joining.join(peer.checkpoint())

    hooks = joining.trainer.hooks
    assert (hooks.epoch, hooks.first_step) == (expected, 2 * epoch)


def test_a_joining_worker_starts_and_ends_evaluations_like_its_peer():
    peer, joining = loop_of(0, whole_shards), loop_of(1, whole_shards)
    without = peer.checkpoint()
    peer.progress = replace(peer.progress, evaluation=EvaluationProgress(Ledger(1)))
    within = peer.checkpoint()
    calls, hooks = [], joining.trainer.hooks
    hooks.test_begin = lambda: calls.append("test_begin")
    hooks.test_end = lambda logs: calls.append("test_end")
    hooks.load_state = lambda *_: calls.append("load_state")
    joining._begun = True

    for checkpoint in (within, within, without, without):
        joining.join(checkpoint)

    assert calls == [
        "test_begin", "load_state", "load_state", "test_end", "load_state", "load_state",
    ]  # fmt: skip


def test_a_joining_worker_keeps_peer_weights_despite_swaps():
    peer, joining = loop_of(0, whole_shards), loop_of(1, whole_shards)
    without = peer.checkpoint()
    peer.progress = replace(peer.progress, evaluation=EvaluationProgress(Ledger(1)))
    within = peer.checkpoint()

    def swap(logs=None):
        joining.trainer.seen = joining.trainer.seen + 1

    joining.trainer.hooks.test_begin = joining.trainer.hooks.test_end = swap
    joining._begun = True

    for checkpoint in (within, without):
        joining.join(checkpoint)

        assert not joining.trainer.seen.any()


class Agreeing(Alone):
    """Agrees with its first commit to leave out a batch that is to come."""

    agreed = False

    def commit(self, batches, progress, *, stop):
        commit = super().commit(batches, progress, stop=stop)
        before, self.agreed = self.agreed, True
        return commit if before else replace(commit, left_out=(BatchId(0, 1, 0),))


def test_prepared_batches_are_rebuilt_when_records_are_skipped():
    opened = []

    def open_feed(ledger, ranks):
        opened.append((ledger.epoch, ledger.left_out))
        for shard in range(len(opened) - 1, 2):
            yield TrainingBatch(0, shard, 0, batch_of(10 * shard), finished=True)

    loop = loop_of(0, open_feed, num_epochs=1)
    loop.committer = Agreeing(leads=True)

    loop.run()

    assert opened == [(0, ()), (0, (BatchId(0, 1, 0),))]
    loop.events.finish()
    _, _, told = loop.events.since(None)
    skipped = [event for _, event in told if isinstance(event, RecordsSkipped)]
    assert [(event.epoch, event.shard, event.batch) for event in skipped] == [(0, 1, 0)]
    assert loop.checkpoint().metadata["progress"]["ledger"]["left_out"] == [[0, 1, 0]]
