"""When the loop ends, and what it asks of the feed when it goes on from the state of a peer."""

import itertools

import pytest
from tests.engines.elastic.counting import CountingTrainer, batch_of

from elasticdl.engines.elastic.reports import History, Point, Snapshots
from elasticdl.engines.feed import FedBatch
from elasticdl.engines.loop import Loop
from elasticdl.engines.place import Place
from elasticdl.engines.progress import Silent
from elasticdl.engines.seams import Commit
from elasticdl.job import TrainingOptions
from elasticdl.sharding.ledger import Ledger, Row


class Alone:
    """Commits what it gets.

    Args:
        leads: Its callbacks may end the training.
    """

    max_group_steps, patience_steps = 1, 50

    def __init__(self, *, leads):
        self._leads = leads

    def leads(self):
        return self._leads

    def begin(self, *, ahead):
        pass

    def commit(self, batches, place, *, stop):
        if stop:
            return Commit([], [0], stop=True)
        rows = [Row(0, 1, finished=batches[0].finished)] if batches else []
        return Commit(rows, [0], {"loss": (0.0, 1.0)} if batches else {})


def loop_of(slot, open_feed, *, leads=False, **options):
    history = History(Point(0, 1))
    return Loop(
        options=TrainingOptions(**options),
        trainer=CountingTrainer(20),
        committer=Alone(leads=leads),
        open_feed=open_feed,
        slot=slot,
        num_records=20,
        events=history,
        checkpoints=Snapshots(history),
        checkpoint_metadata={},
        reporter=Silent(),
        validation=None,
        place=Place(Ledger(2, 10)),
        safe_point=lambda: None,
        event_interval_s=0.0,
        slots=[0],
    )


def whole_shards(ledger, slots):
    """Make one batch of each shard, for ever."""
    for epoch in itertools.count(ledger.epoch):
        for shard in range(2):
            yield FedBatch(epoch, shard, 0, batch_of(10 * shard), finished=True)


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
    assert loop.place.stopped == leads


def test_who_takes_over_a_piece_is_among_those_its_batches_are_forecast_for():
    asked = []

    def open_feed(ledger, slots):
        asked.append(set(slots))
        yield FedBatch(0, 1, 0, batch_of(10), finished=False)

    peer = loop_of(0, open_feed)
    # Slot 1 has a piece in hand and took no part in the last commit: its worker is gone.
    peer.place, peer.slots = Place(Ledger(2, 10).deal([0, 1])), [0]
    replacement = loop_of(1, open_feed)

    replacement.join(peer.checkpoint())
    replacement._next_group()

    assert asked == [{0, 1}]
    replacement.close_feed()
