"""Every batch once, whatever happens to the slots."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from elasticdl.sharding.ledger import Ledger, Piece, Row
from elasticdl.sharding.left_out import BatchId


def test_slots_get_shards_in_order_lowest_slot_first():
    ledger = Ledger(num_shards=3).deal([1, 0])

    assert ledger.in_hand == {0: Piece(0), 1: Piece(1)}


def test_a_slot_keeps_its_piece_until_it_is_finished():
    ledger = Ledger(num_shards=3).deal([0]).advance([Row(0, 2, finished=False)]).deal([0])

    assert ledger.piece_of(0) == Piece(0, committed=2)


def test_a_slot_that_has_nothing_holds_no_piece():
    assert Ledger(num_shards=3).deal([0, 2]).piece_of(1) is None


def test_what_a_lost_slot_held_is_first_in_line_without_its_committed_batches():
    ledger = Ledger(num_shards=3).deal([0, 1]).advance([Row(0, 2, finished=False, digest=9)])

    ledger = ledger.lost([0]).deal([5])

    assert ledger.piece_of(5) == Piece(0, committed=2, digest=9)


def test_what_was_lost_last_is_first_in_line():
    ledger = Ledger(num_shards=3).deal([0, 1, 2]).lost([0]).lost([1, 2])

    assert ledger.waiting == [Piece(1), Piece(2), Piece(0)]


def test_losing_a_slot_that_holds_nothing_changes_nothing():
    ledger = Ledger(num_shards=3).deal([0])

    assert ledger.lost([7]) == ledger


def test_an_epoch_is_done_when_nothing_is_left_anywhere():
    ledger = Ledger(num_shards=1).deal([0])
    assert not ledger.epoch_done

    ledger = ledger.advance([Row(0, 1, finished=True)])

    assert ledger.epoch_done
    assert ledger.next_epoch() == Ledger(num_shards=1, epoch=1)


def test_the_next_epoch_splits_as_this_one():
    ledger = Ledger(num_shards=1, batches_per_shard=4).deal([0]).advance([Row(0, 4, True)])

    assert ledger.next_epoch().batches_per_shard == 4


def test_the_next_epoch_waits_for_the_last_batch():
    with pytest.raises(ValueError, match="Epoch 0 is not done"):
        Ledger(num_shards=1).deal([0]).next_epoch()


def test_the_next_epoch_waits_for_what_was_lost():
    with pytest.raises(ValueError, match="Epoch 0 is not done"):
        Ledger(num_shards=1).deal([0]).lost([0]).next_epoch()


def test_a_shard_without_any_batch_is_finished_with_none():
    ledger = Ledger(num_shards=1).deal([0]).advance([Row(0, 0, finished=True)])

    assert ledger.epoch_done


def test_ledgers_that_differ_in_one_number_are_not_equal():
    ledger = Ledger(num_shards=2).deal([0])

    assert ledger == Ledger(num_shards=2).deal([0])
    assert ledger != Ledger(num_shards=2).deal([1])
    assert ledger != ledger.lost([0])
    assert ledger != ledger.advance([Row(0, 1, finished=False)])
    assert ledger.deal([1]).lost([0, 1]) != ledger.deal([1]).lost([0]).lost([1])
    assert Ledger(num_shards=2) != Ledger(num_shards=2, batches_per_shard=1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Row(1, 1, finished=False)], "Slot 1 committed batches but holds no shard"),
        ([Row(9, 1, finished=False)], "Slot 9 committed batches but holds no shard"),
        ([Row(0, 0, finished=False)], "Slot 0 committed 0 batches"),
        ([Row(0, -1, finished=True)], "Slot 0 committed -1 batches"),
        ([Row(0, 1, False), Row(0, 1, False)], "Slot 0 has more than one row"),
        ([Row(0, 5, finished=False)], "Slot 0 committed more than its piece holds"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows, message):
    ledger = Ledger(num_shards=3, batches_per_shard=4).deal([0, 2])

    with pytest.raises(ValueError, match=message):
        ledger.advance(rows)


@pytest.mark.parametrize(
    "happens",
    [
        lambda ledger: ledger.deal([2, 3]),
        lambda ledger: ledger.advance([Row(0, 1, False)]),
        lambda ledger: ledger.advance([Row(0, 8, False)]),
        lambda ledger: ledger.lost([0]),
        lambda ledger: ledger.missed([0], patience=5),
        lambda ledger: ledger.missed([0], patience=1),
    ],
)
def test_a_ledger_is_not_changed_by_what_comes_of_it(happens):
    ledger = Ledger(num_shards=3, batches_per_shard=8).deal([0, 1, 2]).lost([2])
    before = ledger.to_json()

    after = happens(ledger)

    assert after.to_json() != before
    assert ledger.to_json() == before


# --- missed steps -----------------------------------------------------------------------------


def test_a_piece_goes_to_somebody_else_when_patience_is_over():
    ledger = Ledger(num_shards=3).deal([0, 1])

    once = ledger.missed([0], patience=2)
    twice = once.missed([0], patience=2)

    assert once.piece_of(1) == Piece(1)
    assert twice.piece_of(1) is None
    assert twice.waiting == [Piece(1)]


def test_only_steps_missed_in_a_row_count():
    ledger = Ledger(num_shards=3).deal([0, 1])

    for present in ([0], [0, 1], [0]):
        ledger = ledger.missed(present, patience=2)

    assert ledger.piece_of(1) == Piece(1)


def test_a_replacement_in_time_goes_on_where_its_slot_stands():
    ledger = Ledger(num_shards=3).deal([0, 1]).advance([Row(1, 2, finished=False)])

    ledger = ledger.missed([0], patience=2).deal([0, 1])

    assert ledger.piece_of(1) == Piece(1, committed=2)


def test_no_patience_at_all_is_refused():
    with pytest.raises(ValueError, match="patience of 0 steps"):
        Ledger(num_shards=3).deal([0]).missed([0], patience=0)


# --- splitting --------------------------------------------------------------------------------


def test_a_slot_without_a_piece_takes_the_rear_half_of_the_longest():
    ledger = Ledger(num_shards=2, batches_per_shard=8).deal([0, 1]).advance([Row(0, 3, False)])

    ledger = ledger.deal([2])

    assert ledger.in_hand == {0: Piece(0, 3, 8), 1: Piece(1, 0, 4), 2: Piece(1, 4, 8)}


def test_who_holds_the_larger_part_keeps_the_odd_batch():
    ledger = Ledger(num_shards=1, batches_per_shard=3).deal([0, 1])

    assert ledger.in_hand == {0: Piece(0, 0, 2), 1: Piece(0, 2, 3)}


def test_one_batch_is_not_split():
    ledger = Ledger(num_shards=1, batches_per_shard=2).deal([0, 1, 2])

    assert ledger.piece_of(2) is None


def test_nothing_is_split_before_everything_is_dealt():
    ledger = Ledger(num_shards=3, batches_per_shard=8).deal([0, 1]).lost([1]).deal([1, 2])

    assert ledger.in_hand == {0: Piece(0, 0, 8), 1: Piece(1, 0, 8), 2: Piece(2, 0, 8)}


def test_a_shard_that_can_only_be_replayed_is_not_split():
    ledger = Ledger(num_shards=1).deal([0, 1])

    assert ledger.in_hand == {0: Piece(0)}


def test_a_part_ends_before_the_next_one():
    ledger = Ledger(num_shards=1, batches_per_shard=4).deal([0, 1])

    ledger = ledger.advance([Row(0, 2, finished=False)])

    assert ledger.in_hand == {1: Piece(0, 2, 4)}


def test_a_part_beyond_the_end_of_a_short_shard_is_finished_with_no_batch():
    # The shard turns out to have one batch only.
    ledger = Ledger(num_shards=1, batches_per_shard=4).deal([0, 1])

    ledger = ledger.advance([Row(0, 1, finished=True), Row(1, 0, finished=True)])

    assert ledger.epoch_done


def test_half_of_an_absent_slots_piece_is_taken_without_its_missed_steps():
    ledger = Ledger(num_shards=1, batches_per_shard=8).deal([0]).missed([], patience=3)

    ledger = ledger.deal([1]).missed([], patience=2)

    assert ledger.in_hand == {1: Piece(0, 4, 8)}
    assert ledger.waiting == [Piece(0, 0, 4)]


@given(
    lefts=st.lists(st.integers(1, 70), min_size=1, max_size=12),
    num_idle=st.integers(1, 40),
    order=st.randoms(),
)
def test_idle_slots_take_from_the_longest_one_after_the_other(lefts, num_idle, order):
    slots = list(range(len(lefts) + num_idle))
    order.shuffle(slots)
    holders, idle = slots[: len(lefts)], sorted(slots[len(lefts) :])
    ledger = Ledger(len(lefts), 70).deal(holders)
    holders = sorted(holders)
    ledger = ledger.advance(
        [
            Row(slot, 70 - left, False)
            for slot, left in zip(holders, lefts, strict=True)
            if left < 70
        ]
    )
    expected = {slot: ledger.piece_of(slot) for slot in holders}
    for slot in idle:
        left, minus_holder = max((p.stop - p.committed, -s) for s, p in expected.items())
        if left >= 2:
            piece = expected[-minus_holder]
            middle = piece.stop - left // 2
            expected[-minus_holder] = piece._replace(stop=middle)
            expected[slot] = Piece(piece.shard, middle, piece.stop)

    assert ledger.deal(idle).in_hand == expected


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    splits=st.booleans(),
    steps=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["commits", "fails", "dies"])), max_size=30
    ),
)
def test_a_lone_slot_trains_in_the_order_of_the_plan(lengths, splits, steps):
    ledger = Ledger(len(lengths), max([1, *lengths]) if splits else 0)
    committed = []
    for num, event in [*steps, *[(1, "commits")] * 30]:
        dealt = (ledger.lost([0]) if event == "dies" else ledger).deal([0])
        piece = dealt.piece_of(0)
        if piece is None:
            break
        stop = min(piece.committed + num, lengths[piece.shard])
        if event != "fails":
            committed.extend((piece.shard, i) for i in range(piece.committed, stop))
            row = Row(0, stop - piece.committed, finished=stop == lengths[piece.shard])
            ledger = dealt.advance([row]).missed([0], 1)

    assert committed == [(s, i) for s, length in enumerate(lengths) for i in range(length)]


# --- as it travels ----------------------------------------------------------------------------


@given(
    slots=st.sets(st.integers(0, 50), min_size=1),
    splits=st.booleans(),
    order=st.randoms(),
)
def test_neither_the_order_nor_the_kind_of_what_it_is_told_matters(slots, splits, order):
    shuffled = list(slots)
    order.shuffle(shuffled)
    some = [slot for slot in shuffled if slot % 3]
    rows = [Row(slot, 1, False, slot) for slot in some]

    def drive(deal, rows, lost, present):
        ledger = Ledger(5, 8 if splits else 0).deal(deal)
        rows = [row for row in rows if ledger.piece_of(int(row[0]))]
        return ledger.advance(rows).lost(lost).missed(present, 1)

    assert drive(slots, sorted(rows), {1, 2}, set(some)) == drive(
        np.array(shuffled * 2),
        np.array(rows).reshape(-1, 4),
        iter([2, 1]),
        np.array(some, np.int32),
    )


@pytest.mark.parametrize("waiting", [False, True])
def test_the_state_of_ten_thousand_slots_is_less_than_a_megabyte(waiting):
    slots = np.arange(10_000)
    ledger = Ledger(num_shards=10**6, dealt=10**6 - len(slots)).deal(slots)
    one = np.ones_like(slots)
    digests = 2**32 - 1 - slots
    ledger = ledger.advance(np.stack([slots, 31 * one, 0 * one, digests], axis=1))
    ledger = ledger.lost(slots) if waiting else ledger

    assert len(json.dumps(ledger.to_json())) < 1e6


# --- anything, in any order -------------------------------------------------------------------


def digest_of(shard: int, num_batches: int) -> int:
    return zlib.crc32(bytes([shard, num_batches])) if num_batches else 0


@dataclass
class Replica:
    """A worker's copy of the model's state: the ledger, and how many commits are in it."""

    ledger: Ledger | None = None
    version: int = -1


class Job(RuleBasedStateMachine):
    """Workers that die, stay away, come back and heal, each with a ledger of its own.

    `committed` is what is in the model, counted by the batches the workers really fed. A commit
    is applied by all who took part, each on its own ledger; others have to take over a ledger
    before they take part again.
    """

    NUM_SLOTS = 5
    SOME_SLOTS = st.sets(st.integers(0, NUM_SLOTS - 1), min_size=1)

    @initialize(
        lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
        splits=st.booleans(),
        short=st.booleans(),
        patience=st.integers(1, 3),
        looks_ahead=st.booleans(),
        deals_after=st.booleans(),
        slots=SOME_SLOTS,
    )
    def start(self, lengths, splits, short, patience, looks_ahead, deals_after, slots):
        self.most = max([1, *lengths]) if splits else 0
        # Any shard may turn out to be short, or, as a ShardPlan cuts, only one.
        only_one = [self.most] * (len(lengths) - 1) + lengths[:1]
        self.lengths = only_one if splits and not short else lengths
        self.patience = patience
        # Or the feed learns only after a shard's last batch that it was the last.
        self.looks_ahead = looks_ahead
        # Deal at the end of each commit, as the engine does, or at the beginning of each step.
        self.deals_after = deals_after
        self.epoch = 0
        self.version = 0
        self.committed = Counter()
        self.noticed = set()
        first = Ledger(len(lengths), self.most)
        self.replicas = {slot: Replica(first, 0) for slot in slots}
        self.a_checkpoint(stops=False)

    def length(self, shard):
        return self.lengths[(shard + self.epoch) % len(self.lengths)]

    def healthy(self):
        return [slot for slot, r in self.replicas.items() if r.version == self.version]

    @property
    def ledger(self):
        return self.replicas[self.healthy()[0]].ledger

    @rule(slots=SOME_SLOTS)
    def workers_come(self, slots):
        # Into a slot that had one before: its replacement, possibly before anybody noticed.
        for slot in slots - set(self.replicas):
            self.replicas[slot] = Replica()

    @rule(slots=SOME_SLOTS, noticed=st.booleans())
    def workers_die(self, slots, noticed):
        for slot in slots & set(self.replicas):
            del self.replicas[slot]
            if noticed:
                self.noticed.add(slot)
        if not self.healthy():
            self.everything_stops()

    @rule(data=st.data(), num=st.integers(1, 4), commits=st.integers(0, 3).map(bool))
    def a_step(self, data, num, commits):
        away = data.draw(st.sets(st.sampled_from(sorted(self.replicas))), label="away")
        if set(self.healthy()) <= away:
            away.remove(self.healthy()[0])
        self.step(set(self.replicas) - away, num, commits)

    @rule(stops=st.integers(0, 3).map(lambda number: number == 0))
    def a_checkpoint(self, stops):
        if stops:
            self.everything_stops()
        else:
            self.saved = (json.dumps(self.ledger.to_json()), self.epoch, self.committed.copy())

    def everything_stops(self):
        state, self.epoch, committed = self.saved
        # The weights are those of the checkpoint again, and so is what is in them.
        self.committed = committed.copy()
        self.version += 1
        self.noticed.clear()
        self.replicas = {3: Replica(Ledger.from_json(json.loads(state)), self.version)}

    def step(self, present, num, commits):
        """One quorum: late ones heal, all deal, feed, agree, and apply the same rows."""
        self.heal(present)
        ledgers = {slot: self.replicas[slot].ledger for slot in present}
        if not self.deals_after:
            ledgers = self.deal(ledgers)
        fed = [self.feed(slot, ledger, num) for slot, ledger in ledgers.items()]
        if not commits:
            return  # ... and nobody's ledger knows of it.
        rows = [row for row, _ in fed if row]
        for i, slot in enumerate(present):
            mine = ledgers[slot].advance(rows[i:] + rows[:i])
            ledgers[slot] = mine.missed(present, self.patience)
        if self.deals_after:
            ledgers = self.deal(ledgers)
        self.committed.update(batch for _, batches in fed for batch in batches)
        self.version += 1
        self.noticed.clear()
        self.replicas |= {slot: Replica(ledger, self.version) for slot, ledger in ledgers.items()}
        if self.ledger.epoch_done:
            self.end_epoch()

    def heal(self, present):
        state = json.dumps(self.ledger.to_json())
        for slot in present:
            if self.replicas[slot].version != self.version:
                self.replicas[slot] = Replica(Ledger.from_json(json.loads(state)), self.version)

    def deal(self, ledgers):
        dealt = {s: ledger.lost(self.noticed).deal(ledgers) for s, ledger in ledgers.items()}
        for ledger in dealt.values():
            assert_no_one_idles(ledger, ledgers)
        return dealt

    def feed(self, slot, ledger, num):
        """Return what a slot says it committed, and which batches they really were."""
        piece = ledger.piece_of(slot)
        if piece is None:
            return None, []
        if not self.most:
            assert piece.digest == digest_of(piece.shard, piece.committed)
        length = self.length(piece.shard)
        num = max(0, min(num, min(length, piece.stop or length) - piece.committed))
        known = piece.committed + num >= length and (self.looks_ahead or not num)
        row = Row(slot, num, known, digest_of(piece.shard, piece.committed + num))
        return row, [(piece.shard, piece.committed + i) for i in range(num)]

    def dataset(self):
        return Counter((s, i) for s in range(len(self.lengths)) for i in range(self.length(s)))

    def end_epoch(self):
        assert self.committed == self.dataset()
        self.epoch += 1
        self.committed.clear()
        for replica in self.replicas.values():
            if replica.version == self.version:
                replica.ledger = replica.ledger.next_epoch()

    @invariant()
    def every_batch_is_committed_or_still_to_come(self):
        ledger = self.ledger
        to_come = Counter()
        for piece in [*ledger.waiting, *ledger.in_hand.values()]:
            length = self.length(piece.shard)
            stop = min(length, piece.stop or length)
            to_come.update((piece.shard, i) for i in range(piece.committed, stop))
        for shard in range(ledger.dealt, len(self.lengths)):
            to_come.update((shard, i) for i in range(self.length(shard)))

        assert self.committed + to_come == self.dataset()

    @invariant()
    def all_who_applied_the_same_commits_have_equal_ledgers(self):
        assert all(self.replicas[slot].ledger == self.ledger for slot in self.healthy())

    @invariant()
    def there_are_no_more_pieces_than_slots(self):
        assert len(self.ledger.waiting) + len(self.ledger.in_hand) <= self.NUM_SLOTS

    def teardown(self):
        """Whoever is left ends the epoch: nothing may be stuck in a dead one's hand."""
        if not hasattr(self, "replicas"):
            return  # It failed before it began.
        epoch, num_steps = self.epoch, 0
        while self.epoch == epoch:
            self.step(set(self.replicas), 1, commits=True)
            num_steps += 1
            assert num_steps < 100


def assert_no_one_idles(ledger, present):
    """Nobody is without a piece while there is one, or two batches that can be told apart."""
    if not set(present) <= set(ledger.in_hand):
        assert not ledger.waiting
        assert ledger.dealt == ledger.num_shards
        assert [p for p in ledger.in_hand.values() if p.stop - p.committed >= 2] == []


class TestEveryBatchIsCommittedOnceWhateverHappens(Job.TestCase):
    settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.exhaustive
class TestEveryBatchIsCommittedOnceInManyMoreHistories(Job.TestCase):
    settings = settings(max_examples=1000, stateful_step_count=40)


@pytest.mark.parametrize("batch", [BatchId(1, 0, 2), BatchId(1, 1, 0), BatchId(2, 0, 0)])
def test_a_batch_that_is_not_committed_can_be_left_out_from_its_epoch_on(batch):
    ledger = Ledger(num_shards=2, batches_per_shard=4, epoch=1).deal([0])
    ledger = ledger.advance([Row(0, 2, finished=False)])

    left_out = ledger.leave_out([batch])

    assert left_out.left_out == (batch,)
    assert left_out.lost([0]).leave_out([batch]).left_out == (batch,)
    assert Ledger.from_json(left_out.to_json()).left_out == (batch,)


def test_what_was_left_out_stays_so_in_the_epochs_that_follow():
    ledger = Ledger(num_shards=1).leave_out([BatchId(0, 0, 0)]).deal([0])

    ledger = ledger.advance([Row(0, 1, finished=True)]).next_epoch()

    assert ledger.left_out == (BatchId(0, 0, 0),)


@pytest.mark.parametrize("batch", [BatchId(1, 0, 1), BatchId(1, 1, 3), BatchId(0, 1, 3)])
def test_a_batch_that_was_trained_on_after_all_is_not_left_out(batch):
    ledger = Ledger(num_shards=3, batches_per_shard=4, epoch=1).deal([0, 1])
    ledger = ledger.advance([Row(0, 2, finished=False), Row(1, 4, finished=True)])

    assert ledger.leave_out([batch]) is ledger


def test_both_parts_of_a_shard_that_is_shared_are_looked_into():
    ledger = Ledger(num_shards=1, batches_per_shard=8).deal([0, 1])
    ledger = ledger.advance([Row(0, 1, finished=False), Row(1, 1, finished=False)])

    left_out = ledger.leave_out(BatchId(0, 0, batch) for batch in range(8)).left_out

    assert [batch.batch for batch in left_out] == [1, 2, 3, 5, 6, 7]
