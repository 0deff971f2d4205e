"""Every batch once, whatever happens to the ranks."""

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

from elasticdl.sharding.ledger import LeaseUpdate, Ledger, ShardLease
from elasticdl.sharding.left_out import BatchId


def test_ranks_get_shards_in_order_lowest_rank_first():
    ledger = Ledger(num_shards=3).assign([1, 0])

    assert ledger.leased == {0: ShardLease(0), 1: ShardLease(1)}


def test_a_rank_keeps_its_piece_until_it_is_finished():
    ledger = (
        Ledger(num_shards=3).assign([0]).advance([LeaseUpdate(0, 2, finished=False)]).assign([0])
    )

    assert ledger.lease_of(0) == ShardLease(0, next_batch=2)


def test_a_rank_without_work_holds_no_piece():
    assert Ledger(num_shards=3).assign([0, 2]).lease_of(1) is None


def test_uncommitted_batches_of_a_lost_rank_come_first():
    ledger = (
        Ledger(num_shards=3).assign([0, 1]).advance([LeaseUpdate(0, 2, finished=False, digest=9)])
    )

    ledger = ledger.release([0]).assign([5])

    assert ledger.lease_of(5) == ShardLease(0, next_batch=2, digest=9)


def test_the_most_recently_lost_piece_comes_first():
    ledger = Ledger(num_shards=3).assign([0, 1, 2]).release([0]).release([1, 2])

    assert ledger.waiting == [ShardLease(1), ShardLease(2), ShardLease(0)]


def test_losing_a_rank_that_holds_nothing_changes_nothing():
    ledger = Ledger(num_shards=3).assign([0])

    assert ledger.release([7]) == ledger


def test_an_epoch_is_done_when_no_piece_is_left():
    ledger = Ledger(num_shards=1).assign([0])
    assert not ledger.epoch_done

    ledger = ledger.advance([LeaseUpdate(0, 1, finished=True)])

    assert ledger.epoch_done
    assert ledger.next_epoch() == Ledger(num_shards=1, epoch=1)


def test_the_next_epoch_can_be_split_like_this_one():
    ledger = (
        Ledger(num_shards=1, batches_per_shard=4).assign([0]).advance([LeaseUpdate(0, 4, True)])
    )

    assert ledger.next_epoch().batches_per_shard == 4


def test_the_next_epoch_waits_for_the_last_batch():
    with pytest.raises(ValueError, match="Epoch 0 is not done"):
        Ledger(num_shards=1).assign([0]).next_epoch()


def test_the_next_epoch_waits_for_lost_pieces():
    with pytest.raises(ValueError, match="Epoch 0 is not done"):
        Ledger(num_shards=1).assign([0]).release([0]).next_epoch()


def test_an_empty_shard_is_finished_without_a_batch():
    ledger = Ledger(num_shards=1).assign([0]).advance([LeaseUpdate(0, 0, finished=True)])

    assert ledger.epoch_done


def test_ledgers_that_differ_in_one_number_are_not_equal():
    ledger = Ledger(num_shards=2).assign([0])

    assert ledger == Ledger(num_shards=2).assign([0])
    assert ledger != Ledger(num_shards=2).assign([1])
    assert ledger != ledger.release([0])
    assert ledger != ledger.advance([LeaseUpdate(0, 1, finished=False)])
    assert ledger.assign([1]).release([0, 1]) != ledger.assign([1]).release([0]).release([1])
    assert Ledger(num_shards=2) != Ledger(num_shards=2, batches_per_shard=1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([LeaseUpdate(1, 1, finished=False)], "Rank 1 committed batches but holds no shard"),
        ([LeaseUpdate(9, 1, finished=False)], "Rank 9 committed batches but holds no shard"),
        ([LeaseUpdate(0, 0, finished=False)], "Rank 0 committed 0 batches"),
        ([LeaseUpdate(0, -1, finished=True)], "Rank 0 committed -1 batches"),
        ([LeaseUpdate(0, 1, False), LeaseUpdate(0, 1, False)], "Rank 0 has more than one row"),
        ([LeaseUpdate(0, 5, finished=False)], "Rank 0 committed more than its lease holds"),
    ],
)
def test_impossible_rows_are_refused(rows, message):
    ledger = Ledger(num_shards=3, batches_per_shard=4).assign([0, 2])

    with pytest.raises(ValueError, match=message):
        ledger.advance(rows)


@pytest.mark.parametrize(
    "happens",
    [
        lambda ledger: ledger.assign([2, 3]),
        lambda ledger: ledger.advance([LeaseUpdate(0, 1, False)]),
        lambda ledger: ledger.advance([LeaseUpdate(0, 8, False)]),
        lambda ledger: ledger.release([0]),
        lambda ledger: ledger.release_missing([0], patience=5),
        lambda ledger: ledger.release_missing([0], patience=1),
    ],
)
def test_a_ledger_is_immutable(happens):
    ledger = Ledger(num_shards=3, batches_per_shard=8).assign([0, 1, 2]).release([2])
    before = ledger.to_json()

    after = happens(ledger)

    assert after.to_json() != before
    assert ledger.to_json() == before


# --- missed steps -----------------------------------------------------------------------------


def test_a_piece_is_reassigned_when_patience_is_over():
    ledger = Ledger(num_shards=3).assign([0, 1])

    once = ledger.release_missing([0], patience=2)
    twice = once.release_missing([0], patience=2)

    assert once.lease_of(1) == ShardLease(1)
    assert twice.lease_of(1) is None
    assert twice.waiting == [ShardLease(1)]


def test_only_consecutive_missed_steps_count():
    ledger = Ledger(num_shards=3).assign([0, 1])

    for present in ([0], [0, 1], [0]):
        ledger = ledger.release_missing(present, patience=2)

    assert ledger.lease_of(1) == ShardLease(1)


def test_a_timely_replacement_continues_the_piece_of_its_rank():
    ledger = Ledger(num_shards=3).assign([0, 1]).advance([LeaseUpdate(1, 2, finished=False)])

    ledger = ledger.release_missing([0], patience=2).assign([0, 1])

    assert ledger.lease_of(1) == ShardLease(1, next_batch=2)


def test_zero_patience_is_refused():
    with pytest.raises(ValueError, match="patience of 0 steps"):
        Ledger(num_shards=3).assign([0]).release_missing([0], patience=0)


# --- splitting --------------------------------------------------------------------------------


def test_an_idle_rank_takes_the_rear_half_of_the_longest_piece():
    ledger = (
        Ledger(num_shards=2, batches_per_shard=8).assign([0, 1]).advance([LeaseUpdate(0, 3, False)])
    )

    ledger = ledger.assign([2])

    assert ledger.leased == {
        0: ShardLease(0, 3, 8),
        1: ShardLease(1, 0, 4),
        2: ShardLease(1, 4, 8),
    }


def test_the_previous_holder_keeps_the_odd_batch():
    ledger = Ledger(num_shards=1, batches_per_shard=3).assign([0, 1])

    assert ledger.leased == {0: ShardLease(0, 0, 2), 1: ShardLease(0, 2, 3)}


def test_one_batch_is_not_split():
    ledger = Ledger(num_shards=1, batches_per_shard=2).assign([0, 1, 2])

    assert ledger.lease_of(2) is None


def test_nothing_is_split_before_everything_is_assigned():
    ledger = Ledger(num_shards=3, batches_per_shard=8).assign([0, 1]).release([1]).assign([1, 2])

    assert ledger.leased == {
        0: ShardLease(0, 0, 8),
        1: ShardLease(1, 0, 8),
        2: ShardLease(2, 0, 8),
    }


def test_a_shard_that_can_only_be_replayed_is_not_split():
    ledger = Ledger(num_shards=1).assign([0, 1])

    assert ledger.leased == {0: ShardLease(0)}


def test_a_part_ends_before_the_next_one():
    ledger = Ledger(num_shards=1, batches_per_shard=4).assign([0, 1])

    ledger = ledger.advance([LeaseUpdate(0, 2, finished=False)])

    assert ledger.leased == {1: ShardLease(0, 2, 4)}


def test_a_part_beyond_a_short_shard_is_finished_without_a_batch():
    # The shard turns out to have one batch only.
    ledger = Ledger(num_shards=1, batches_per_shard=4).assign([0, 1])

    ledger = ledger.advance([LeaseUpdate(0, 1, finished=True), LeaseUpdate(1, 0, finished=True)])

    assert ledger.epoch_done


def test_splitting_an_absent_ranks_piece_skips_its_missed_steps():
    ledger = Ledger(num_shards=1, batches_per_shard=8).assign([0]).release_missing([], patience=3)

    ledger = ledger.assign([1]).release_missing([], patience=2)

    assert ledger.leased == {1: ShardLease(0, 4, 8)}
    assert ledger.waiting == [ShardLease(0, 0, 4)]


@given(
    lefts=st.lists(st.integers(1, 70), min_size=1, max_size=12),
    num_idle=st.integers(1, 40),
    order=st.randoms(),
)
def test_idle_ranks_split_the_longest_piece_one_after_the_other(lefts, num_idle, order):
    ranks = list(range(len(lefts) + num_idle))
    order.shuffle(ranks)
    holders, idle = ranks[: len(lefts)], sorted(ranks[len(lefts) :])
    ledger = Ledger(len(lefts), 70).assign(holders)
    holders = sorted(holders)
    ledger = ledger.advance(
        [
            LeaseUpdate(rank, 70 - left, False)
            for rank, left in zip(holders, lefts, strict=True)
            if left < 70
        ]
    )
    expected = {rank: ledger.lease_of(rank) for rank in holders}
    for rank in idle:
        left, minus_holder = max((p.stop - p.next_batch, -s) for s, p in expected.items())
        if left >= 2:
            lease = expected[-minus_holder]
            middle = lease.stop - left // 2
            expected[-minus_holder] = lease._replace(stop=middle)
            expected[rank] = ShardLease(lease.shard, middle, lease.stop)

    assert ledger.assign(idle).leased == expected


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    splits=st.booleans(),
    steps=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["commits", "fails", "dies"])), max_size=30
    ),
)
def test_a_lone_rank_trains_in_the_order_of_the_plan(lengths, splits, steps):
    ledger = Ledger(len(lengths), max([1, *lengths]) if splits else 0)
    committed = []
    for num, event in [*steps, *[(1, "commits")] * 30]:
        dealt = (ledger.release([0]) if event == "dies" else ledger).assign([0])
        lease = dealt.lease_of(0)
        if lease is None:
            break
        stop = min(lease.next_batch + num, lengths[lease.shard])
        if event != "fails":
            committed.extend((lease.shard, i) for i in range(lease.next_batch, stop))
            row = LeaseUpdate(0, stop - lease.next_batch, finished=stop == lengths[lease.shard])
            ledger = dealt.advance([row]).release_missing([0], 1)

    assert committed == [(s, i) for s, length in enumerate(lengths) for i in range(length)]


# --- as it travels ----------------------------------------------------------------------------


@given(
    ranks=st.sets(st.integers(0, 50), min_size=1),
    splits=st.booleans(),
    order=st.randoms(),
)
def test_order_and_type_of_arguments_do_not_matter(ranks, splits, order):
    shuffled = list(ranks)
    order.shuffle(shuffled)
    some = [rank for rank in shuffled if rank % 3]
    rows = [LeaseUpdate(rank, 1, False, rank) for rank in some]

    def drive(deal, rows, lost, present):
        ledger = Ledger(5, 8 if splits else 0).assign(deal)
        rows = [row for row in rows if ledger.lease_of(int(row[0]))]
        return ledger.advance(rows).release(lost).release_missing(present, 1)

    assert drive(ranks, sorted(rows), {1, 2}, set(some)) == drive(
        np.array(shuffled * 2),
        np.array(rows).reshape(-1, 4),
        iter([2, 1]),
        np.array(some, np.int32),
    )


@pytest.mark.parametrize("waiting", [False, True])
def test_the_state_of_ten_thousand_ranks_is_less_than_a_megabyte(waiting):
    ranks = np.arange(10_000)
    ledger = Ledger(num_shards=10**6, assigned=10**6 - len(ranks)).assign(ranks)
    one = np.ones_like(ranks)
    digests = 2**32 - 1 - ranks
    ledger = ledger.advance(np.stack([ranks, 31 * one, 0 * one, digests], axis=1))
    ledger = ledger.release(ranks) if waiting else ledger

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

    NUM_RANKS = 5
    SOME_RANKS = st.sets(st.integers(0, NUM_RANKS - 1), min_size=1)

    @initialize(
        lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
        splits=st.booleans(),
        short=st.booleans(),
        patience=st.integers(1, 3),
        looks_ahead=st.booleans(),
        deals_after=st.booleans(),
        ranks=SOME_RANKS,
    )
    def start(self, lengths, splits, short, patience, looks_ahead, deals_after, ranks):
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
        self.replicas = {rank: Replica(first, 0) for rank in ranks}
        self.a_checkpoint(stops=False)

    def length(self, shard):
        return self.lengths[(shard + self.epoch) % len(self.lengths)]

    def healthy(self):
        return [rank for rank, r in self.replicas.items() if r.version == self.version]

    @property
    def ledger(self):
        return self.replicas[self.healthy()[0]].ledger

    @rule(ranks=SOME_RANKS)
    def workers_come(self, ranks):
        # Into a rank that had one before: its replacement, possibly before anybody noticed.
        for rank in ranks - set(self.replicas):
            self.replicas[rank] = Replica()

    @rule(ranks=SOME_RANKS, noticed=st.booleans())
    def workers_die(self, ranks, noticed):
        for rank in ranks & set(self.replicas):
            del self.replicas[rank]
            if noticed:
                self.noticed.add(rank)
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
        ledgers = {rank: self.replicas[rank].ledger for rank in present}
        if not self.deals_after:
            ledgers = self.assign(ledgers)
        fed = [self.feed(rank, ledger, num) for rank, ledger in ledgers.items()]
        if not commits:
            return  # ... and nobody's ledger knows of it.
        rows = [row for row, _ in fed if row]
        for i, rank in enumerate(present):
            mine = ledgers[rank].advance(rows[i:] + rows[:i])
            ledgers[rank] = mine.release_missing(present, self.patience)
        if self.deals_after:
            ledgers = self.assign(ledgers)
        self.committed.update(batch for _, batches in fed for batch in batches)
        self.version += 1
        self.noticed.clear()
        self.replicas |= {rank: Replica(ledger, self.version) for rank, ledger in ledgers.items()}
        if self.ledger.epoch_done:
            self.end_epoch()

    def heal(self, present):
        state = json.dumps(self.ledger.to_json())
        for rank in present:
            if self.replicas[rank].version != self.version:
                self.replicas[rank] = Replica(Ledger.from_json(json.loads(state)), self.version)

    def assign(self, ledgers):
        dealt = {s: ledger.release(self.noticed).assign(ledgers) for s, ledger in ledgers.items()}
        for ledger in dealt.values():
            assert_no_one_idles(ledger, ledgers)
        return dealt

    def feed(self, rank, ledger, num):
        """Return what a rank says it committed, and which batches they really were."""
        lease = ledger.lease_of(rank)
        if lease is None:
            return None, []
        if not self.most:
            assert lease.digest == digest_of(lease.shard, lease.next_batch)
        length = self.length(lease.shard)
        num = max(0, min(num, min(length, lease.stop or length) - lease.next_batch))
        known = lease.next_batch + num >= length and (self.looks_ahead or not num)
        row = LeaseUpdate(rank, num, known, digest_of(lease.shard, lease.next_batch + num))
        return row, [(lease.shard, lease.next_batch + i) for i in range(num)]

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
        for lease in [*ledger.waiting, *ledger.leased.values()]:
            length = self.length(lease.shard)
            stop = min(length, lease.stop or length)
            to_come.update((lease.shard, i) for i in range(lease.next_batch, stop))
        for shard in range(ledger.assigned, len(self.lengths)):
            to_come.update((shard, i) for i in range(self.length(shard)))

        assert self.committed + to_come == self.dataset()

    @invariant()
    def all_who_applied_the_same_commits_have_equal_ledgers(self):
        assert all(self.replicas[rank].ledger == self.ledger for rank in self.healthy())

    @invariant()
    def there_are_no_more_pieces_than_ranks(self):
        assert len(self.ledger.waiting) + len(self.ledger.leased) <= self.NUM_RANKS

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
    """Nobody is without a lease while there is one, or two batches that can be told apart."""
    if not set(present) <= set(ledger.leased):
        assert not ledger.waiting
        assert ledger.assigned == ledger.num_shards
        assert [p for p in ledger.leased.values() if p.stop - p.next_batch >= 2] == []


class TestEveryBatchIsCommittedOnceWhateverHappens(Job.TestCase):
    settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.exhaustive
class TestEveryBatchIsCommittedOnceInManyMoreHistories(Job.TestCase):
    settings = settings(max_examples=1000, stateful_step_count=40)


@pytest.mark.parametrize("batch", [BatchId(1, 0, 2), BatchId(1, 1, 0), BatchId(2, 0, 0)])
def test_an_uncommitted_batch_can_be_skipped_from_its_epoch_on(batch):
    ledger = Ledger(num_shards=2, batches_per_shard=4, epoch=1).assign([0])
    ledger = ledger.advance([LeaseUpdate(0, 2, finished=False)])

    left_out = ledger.leave_out([batch])

    assert left_out.left_out == (batch,)
    assert left_out.release([0]).leave_out([batch]).left_out == (batch,)
    assert Ledger.from_json(left_out.to_json()).left_out == (batch,)


def test_skipped_batches_stay_skipped_in_later_epochs():
    ledger = Ledger(num_shards=1).leave_out([BatchId(0, 0, 0)]).assign([0])

    ledger = ledger.advance([LeaseUpdate(0, 1, finished=True)]).next_epoch()

    assert ledger.left_out == (BatchId(0, 0, 0),)


@pytest.mark.parametrize("batch", [BatchId(1, 0, 1), BatchId(1, 1, 3), BatchId(0, 1, 3)])
def test_a_committed_batch_is_not_skipped(batch):
    ledger = Ledger(num_shards=3, batches_per_shard=4, epoch=1).assign([0, 1])
    ledger = ledger.advance([LeaseUpdate(0, 2, finished=False), LeaseUpdate(1, 4, finished=True)])

    assert ledger.leave_out([batch]) is ledger


def test_skipping_covers_both_parts_of_a_split_shard():
    ledger = Ledger(num_shards=1, batches_per_shard=8).assign([0, 1])
    ledger = ledger.advance([LeaseUpdate(0, 1, finished=False), LeaseUpdate(1, 1, finished=False)])

    left_out = ledger.leave_out(BatchId(0, 0, batch) for batch in range(8)).left_out

    assert [batch.batch for batch in left_out] == [1, 2, 3, 5, 6, 7]
