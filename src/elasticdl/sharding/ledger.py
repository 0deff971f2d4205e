"""Shard ledger: which worker trains on which batches, and which were already trained on.

A ledger is an immutable value: the methods that record an assignment, a commit or a lost rank
return a new ledger. It holds no data, no clock and no connection, so every failure can be
replayed in a unit test. It is part of the model state: it is checkpointed with the weights and
handed to a new worker together with them, so there is no separate queue that could disagree
with the model.

    queued --assign--> leased --finished--> done
       ^               |   ^
       +--- release ---+   +-- split: an idle rank takes the rear half of another's lease

A rank is the number of a worker. A lease assigns batches of a shard to a rank until they are
committed: trained into the model. A shard is identified by its position in the epoch's order, from
which `ShardPlan` computes its records. The ledger does not need to know beforehand how many batches
a shard has: the update with the last batch is marked as `finished`. Where a shard can be entered at
any batch (`batches_per_shard` is set), ranks that would be idle at the end of an epoch take over
batches that other ranks have not reached yet.

The state is kept in integer arrays with one row per rank, so that a step of ten thousand workers
costs less than a millisecond.

Callers: `engines/loop.py`, `engines/feed.py` and `benchmarks/ledger_simulation.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.sharding.left_out import BatchId

Ints: TypeAlias = npt.NDArray[np.int64]

# Columns of a table of leases; leases in hand also have the rank and the steps it has missed.
_SHARD, _NEXT, _STOP, _DIGEST, _RANK, _MISSED = range(6)
_NUM_WAITING_COLUMNS = 4
_NUM_IN_HAND_COLUMNS = 6
_MIN_TO_SPLIT = 2


class ShardLease(NamedTuple):
    """The uncommitted batches of a shard, or of a part of one, that are assigned together.

    Attributes:
        shard: Position in the epoch's order.
        next_batch: Number of the next batch to train on. Earlier batches of the shard are
            committed, or belong to another rank's lease.
        stop: Number of the batch before which the lease ends, unless the shard ends earlier; 0
            means that the lease ends with the shard.
        digest: Rolling hash of the shard's committed batches, to verify that a user's pipeline
            yields the same batches when it is replayed; 0 if there is nothing to verify.
    """

    shard: int
    next_batch: int = 0
    stop: int = 0
    digest: int = 0


class LeaseUpdate(NamedTuple):
    """The batches that one rank committed in one step or group of steps.

    Attributes:
        rank: The rank that holds the lease.
        num_batches: Number of batches committed, from the lease's `next_batch` on.
        finished: Whether the shard has no batch after these. If so, `num_batches` may be 0: the
            shard turned out to have no further batch.
        digest: Rolling hash of the shard's batches up to the last of these; see `ShardLease`.
    """

    rank: int
    num_batches: int
    finished: bool
    digest: int = 0


def _no_rows(columns: int) -> Ints:
    return np.empty((0, columns), np.int64)


@dataclass(frozen=True, eq=False)
class Ledger:
    """Immutable state of an epoch: the lease of each rank, the queue, and what is done.

    A rank is the number of a worker. A lease assigns the batches of a shard, or of a part of one,
    to a rank until they are committed.

    Attributes:
        num_shards: Number of shards in an epoch.
        batches_per_shard: Number of batches in each shard except the last. 0: unknown, because a
            shard can only be replayed from its start, not entered at any batch.
        epoch: The epoch being trained, from 0.
        assigned: Number of shards of this epoch that have been assigned to a rank so far; shards
            are first assigned in the epoch's order.
        left_out: Batches whose records are skipped, in the batch's own epoch and all later ones. In
            its own epoch such a batch is assigned and committed like any other, without examples.
    """

    num_shards: int
    batches_per_shard: int = 0
    epoch: int = 0
    assigned: int = 0
    left_out: tuple[BatchId, ...] = ()
    # Arrays are never changed in place: a ledger shares them with the one it was made from.
    _waiting: Ints = field(default_factory=lambda: _no_rows(_NUM_WAITING_COLUMNS))
    _leased: Ints = field(default_factory=lambda: _no_rows(_NUM_IN_HAND_COLUMNS))

    # --- queries --------------------------------------------------------------------------

    @property
    def waiting(self) -> list[ShardLease]:
        """Released leases, such as those of lost workers, in the order of their next assignment."""
        return [ShardLease(*row) for row in self._waiting.tolist()]

    @property
    def leased(self) -> dict[int, ShardLease]:
        """Rank -> its current lease."""
        return {row[_RANK]: ShardLease(*row[:_RANK]) for row in self._leased.tolist()}

    @property
    def epoch_done(self) -> bool:
        """Whether every batch of the epoch is committed."""
        return self.assigned == self.num_shards and not len(self._waiting) and not len(self._leased)

    @property
    def leased_table(self) -> Ints:
        """All current leases as one array, sorted by rank.

        The columns are those of `ShardLease`, then the rank, and the number of steps in a row that
        the rank has missed. The ledger owns the array: do not write to it.
        """
        return self._leased

    def lease_of(self, rank: int) -> ShardLease | None:
        """Return the lease of a rank, or None if it has none."""
        at = np.searchsorted(self._leased[:, _RANK], rank)
        if at == len(self._leased) or self._leased[at, _RANK] != rank:
            return None
        return ShardLease(*self._leased[at, :_RANK].tolist())

    def __eq__(self, other: object) -> bool:
        """Return whether both ledgers have the same batches queued, leased and done.

        `left_out` is not compared: it does not change which rank has which batch.
        """
        return (
            isinstance(other, Ledger)
            and self._counts == other._counts
            and np.array_equal(self._waiting, other._waiting)
            and np.array_equal(self._leased, other._leased)
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def _counts(self) -> tuple[int, int, int, int]:
        return self.num_shards, self.batches_per_shard, self.epoch, self.assigned

    # --- transitions ----------------------------------------------------------------------

    def assign(self, ranks: Iterable[int]) -> Ledger:
        """Return a ledger with a lease for each rank that has none, as long as batches are left.

        Released leases are assigned first, then shards that no rank has had, then the rear halves
        of the longest leases of other ranks.

        Args:
            ranks: Ranks to consider, the lowest first; those with a lease keep it.
        """
        wanting = _as_array(ranks)
        idle = np.sort(wanting[~np.isin(wanting, self._leased[:, _RANK])])
        # Drop duplicates. (`np.unique` would take most of a step's millisecond for ten thousand.)
        idle = idle[np.diff(idle, prepend=-1) > 0]
        if not len(idle) or self.epoch_done:
            return self
        again = min(len(idle), len(self._waiting))
        fresh = min(len(idle) - again, self.num_shards - self.assigned)
        given = np.zeros((again + fresh, _NUM_IN_HAND_COLUMNS), np.int64)
        given[:again, :_RANK] = self._waiting[:again]
        given[again:, _SHARD] = np.arange(self.assigned, self.assigned + fresh)
        given[again:, _STOP] = self.batches_per_shard
        given[:, _RANK] = idle[: again + fresh]
        return replace(
            self,
            assigned=self.assigned + fresh,
            _waiting=self._waiting[again:],
            _leased=_split(_with(self._leased, given), idle[again + fresh :]),
        )

    def advance(self, rows: Sequence[LeaseUpdate] | Ints) -> Ledger:
        """Return a ledger in which these batches are committed; finished leases are removed.

        Args:
            rows: At most one update per rank; as an array, with the columns of `LeaseUpdate`.

        Raises:
            ValueError: A rank committed without holding a lease, committed no batch without
                finishing its shard, committed more than its lease holds, or has two rows.
        """
        table = np.asarray(rows, np.int64).reshape(-1, len(LeaseUpdate._fields))
        rank, num_batches, finished, digest = table.T
        held = self._leased[:, _RANK]
        at = np.searchsorted(held, rank)
        unknown = at == len(held)
        unknown |= np.append(held, -1)[at] != rank
        if unknown.any():
            raise ValueError(f"Rank {rank[unknown][0]} committed batches but holds no shard.")
        nothing = (num_batches < 0) | ((num_batches == 0) & (finished == 0))
        if nothing.any():
            raise ValueError(
                f"Rank {rank[nothing][0]} committed {num_batches[nothing][0]} batches."
            )
        if np.bincount(at).max(initial=0) > 1:
            raise ValueError(f"Rank {held[np.bincount(at).argmax()]} has more than one row.")
        committed = self._leased[at, _NEXT] + num_batches
        stop = self._leased[at, _STOP]
        if ((stop > 0) & (committed > stop)).any():
            # The batches after `stop` are in another lease, and would be trained on twice.
            which = rank[(stop > 0) & (committed > stop)]
            raise ValueError(f"Rank {which[0]} committed more than its lease holds.")
        # The end of a lease without `stop` is known only to the feed.
        done = (finished != 0) | (committed == stop)
        kept = np.ones(len(held), np.bool_)
        kept[at[done]] = False
        leased = self._leased.compress(kept, axis=0)
        # Removed rows have shifted the positions of the others.
        at = (np.cumsum(kept) - 1)[at[~done]]
        leased[at, _NEXT] = committed[~done]
        leased[at, _DIGEST] = digest[~done]
        return replace(self, _leased=leased)

    def release(self, ranks: Iterable[int]) -> Ledger:
        """Return a ledger in which these ranks have no lease.

        Their uncommitted batches are at the front of the queue, to be assigned again.
        """
        which = np.isin(self._leased[:, _RANK], _as_array(ranks))
        return self._put_back(self._leased, which)

    def release_missing(self, present: Iterable[int], patience: int) -> Ledger:
        """Count a missed step for each absent rank; release its lease if it has missed too many.

        A replacement worker that arrives in time continues the lease of its rank.

        Args:
            present: Ranks that took part in the step.
            patience: Missed steps in a row after which a lease is released; at least 1.

        Raises:
            ValueError: `patience` is less than 1. Ranks that took part have missed 0 steps, so they
                would lose their leases too.
        """
        if patience < 1:
            raise ValueError(f"A patience of {patience} steps; expected at least 1.")
        absent = ~np.isin(self._leased[:, _RANK], _as_array(present))
        if not absent.any() and not self._leased[:, _MISSED].any():
            return self
        leased = self._leased.copy()
        leased[:, _MISSED] = np.where(absent, leased[:, _MISSED] + 1, 0)
        return self._put_back(leased, leased[:, _MISSED] >= patience)

    def next_epoch(self) -> Ledger:
        """Return the ledger of the next epoch, with no shard assigned; keeps `left_out`.

        Raises:
            ValueError: The current epoch is not done.
        """
        if not self.epoch_done:
            raise ValueError(f"Epoch {self.epoch} is not done: {self}")
        return Ledger(
            self.num_shards, self.batches_per_shard, self.epoch + 1, left_out=self.left_out
        )

    def leave_out(self, batches: Iterable[BatchId]) -> Ledger:
        """Return a ledger that will skip the records of these batches; see `left_out`.

        A batch that is already committed is not added, because the model was trained on it.
        """
        more = {batch for batch in batches if not self._is_committed(batch)}
        if more <= set(self.left_out):
            return self
        return replace(self, left_out=tuple(sorted({*self.left_out, *more})))

    def _is_committed(self, batch: BatchId) -> bool:
        if batch.epoch != self.epoch:
            return batch.epoch < self.epoch
        if batch.shard >= self.assigned:
            return False
        open_pieces = np.concatenate([self._waiting, self._leased[:, :_RANK]])
        own = open_pieces[open_pieces[:, _SHARD] == batch.shard]
        # A lease without a known end reaches to the end of the shard.
        ahead = (own[:, _NEXT] <= batch.batch) & (
            (own[:, _STOP] == 0) | (batch.batch < own[:, _STOP])
        )
        return not ahead.any()

    def _put_back(self, leased: Ints, which: npt.NDArray[np.bool_]) -> Ledger:
        if not which.any():
            return self if leased is self._leased else replace(self, _leased=leased)
        return replace(
            self,
            _waiting=np.concatenate([leased[which, :_RANK], self._waiting]),
            _leased=leased.compress(~which, axis=0),
        )

    # --- as JSON --------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "num_shards": self.num_shards,
            "batches_per_shard": self.batches_per_shard,
            "epoch": self.epoch,
            "assigned": self.assigned,
            "left_out": [list(batch) for batch in self.left_out],
            "waiting": self._waiting.tolist(),
            "leased": self._leased.tolist(),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Ledger:
        """Return the ledger that `to_json` wrote."""

        def table(name: str, columns: int) -> Ints:
            return np.array(values[name], np.int64).reshape(-1, columns)

        return Ledger(
            num_shards=values["num_shards"],
            batches_per_shard=values["batches_per_shard"],
            epoch=values["epoch"],
            assigned=values["assigned"],
            left_out=tuple(BatchId(*batch) for batch in values["left_out"]),
            _waiting=table("waiting", _NUM_WAITING_COLUMNS),
            _leased=table("leased", _NUM_IN_HAND_COLUMNS),
        )


def _as_array(ranks: Iterable[int]) -> Ints:
    # Ten thousand ranks one by one would cost half of a step's millisecond.
    return np.asarray(ranks if isinstance(ranks, np.ndarray) else list(ranks), np.int64)


def _with(leased: Ints, given: Ints) -> Ints:
    """Return a table of leases with more of them inserted; all are sorted by rank.

    Args:
        leased: The table, with the columns of `Ledger.leased_table`.
        given: Leases to insert, with the same columns, for ranks that are not in the table.
    """
    places = np.searchsorted(leased[:, _RANK], given[:, _RANK])
    return np.insert(leased, places, given, axis=0)


def _split(leased: Ints, idle: Ints) -> Ints:
    """Split the longest lease for each idle rank in turn, and assign its rear half to the rank.

    Of two equally long leases, the one of the lower rank is split. Ranks get nothing once no lease
    has at least two batches left.

    Args:
        leased: Table of leases, sorted by rank. It is changed in place: the caller must be its only
            owner.
        idle: Ranks without a lease, sorted.

    Returns:
        The table with the new leases.
    """
    while len(idle):
        # A lease without a known end has a negative `left`: it cannot be split.
        left = leased[:, _STOP] - leased[:, _NEXT]
        longest = left.max(initial=0)
        if longest < _MIN_TO_SPLIT:
            break
        # Leases longer than any new half are all split before the new halves.
        (long,) = np.nonzero(left > longest - longest // 2)
        chosen = long[np.argsort(-left[long], kind="stable")][: len(idle)]
        taken = left[chosen] // 2
        halves = leased[chosen]
        halves[:, _NEXT] = halves[:, _STOP] - taken
        halves[:, _RANK], idle = idle[: len(chosen)], idle[len(chosen) :]
        halves[:, [_DIGEST, _MISSED]] = 0
        leased[chosen, _STOP] -= taken
        leased = _with(leased, halves)
    return leased
