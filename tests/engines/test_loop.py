"""What the loop asks of the feed when it goes on from the state of a peer."""

from tests.engines.elastic.counting import CountingTrainer, batch_of

from elasticdl.engines.elastic.reports import History, Point, Snapshots
from elasticdl.engines.feed import FedBatch
from elasticdl.engines.loop import Loop
from elasticdl.engines.place import Place
from elasticdl.engines.progress import Silent
from elasticdl.job import TrainingOptions
from elasticdl.sharding.ledger import Ledger


class Alone:
    """A committer that is never asked to commit."""

    max_group_steps = 1


def loop_of(slot, open_feed):
    history = History(Point(0, 1))
    return Loop(
        options=TrainingOptions(),
        trainer=CountingTrainer(20),
        committer=Alone(),
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
    )


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
