"""Every batch once, whatever happens to the slots."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.sharding.ledger import Ledger, Piece, Row


def test_slots_get_shards_in_order_lowest_slot_first():
    ledger = Ledger(num_shards=3).deal([1, 0])

    assert ledger.in_hand == ((0, Piece(0)), (1, Piece(1)))


def test_a_slot_keeps_its_piece_until_it_is_finished():
    ledger = Ledger(num_shards=3).deal([0]).advance([Row(0, 2, finished=False)]).deal([0])

    assert ledger.piece_of(0) == Piece(0, committed=2)


def test_what_a_lost_slot_held_is_first_in_line_without_its_committed_batches():
    ledger = Ledger(num_shards=3).deal([0, 1]).advance([Row(0, 2, finished=False, digest=9)])

    ledger = ledger.lost(0).deal([5])

    assert ledger.piece_of(5) == Piece(0, committed=2, digest=9)


def test_an_epoch_is_done_when_nothing_is_left_anywhere():
    ledger = Ledger(num_shards=1).deal([0])
    assert not ledger.epoch_done

    ledger = ledger.advance([Row(0, 1, finished=True)])

    assert ledger.epoch_done
    assert ledger.next_epoch() == Ledger(num_shards=1, epoch=1)


def test_the_next_epoch_waits_for_the_last_batch():
    with pytest.raises(ValueError, match="Epoch 0 is not done"):
        Ledger(num_shards=1).deal([0]).next_epoch()


def test_a_shard_without_any_batch_is_finished_with_none():
    ledger = Ledger(num_shards=1).deal([0]).advance([Row(0, 0, finished=True)])

    assert ledger.epoch_done


def test_a_slot_cannot_commit_what_it_does_not_hold():
    with pytest.raises(ValueError, match="Slot 1 committed batches but holds no shard"):
        Ledger(num_shards=1).deal([0]).advance([Row(1, 1, finished=False)])


@settings(max_examples=200)
@given(st.data())
def test_every_batch_is_committed_once_whatever_happens_to_the_slots(data):
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    ledger = Ledger(num_shards=len(lengths))
    committed = Counter()
    for _ in range(300):
        if ledger.epoch_done:
            break
        event = data.draw(st.sampled_from(["step", "step", "step", "die", "failed commit"]))
        slots = data.draw(st.sets(st.integers(0, 3), min_size=1))
        ledger = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
        if event == "die":
            ledger = ledger.lost(min(slots))
            continue
        ledger = ledger.deal(slots)
        if event == "failed commit":
            continue
        rows = []
        for slot, piece in ledger.in_hand:
            num = min(data.draw(st.integers(1, 3)), lengths[piece.shard] - piece.committed)
            committed.update((piece.shard, piece.committed + i) for i in range(num))
            done = piece.committed + num == lengths[piece.shard]
            rows.append(Row(slot, num, done))
        ledger = ledger.advance(rows)

    if ledger.epoch_done:
        assert committed == Counter((s, i) for s, n in enumerate(lengths) for i in range(n))
    assert max(committed.values(), default=1) == 1
