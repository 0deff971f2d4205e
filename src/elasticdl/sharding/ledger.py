"""Which slot trains on which batches: a value that changes, and nothing else.

The ledger is told what committed and answers with a new ledger. It holds no data, no clock
and no connection, so every failure can be replayed in a unit test. It is part of the model
state: checkpointed with the weights and handed to a new worker together with them, so no
queue beside the model can disagree with it.

    to deal --deal--> in hand --finished--> done
       ^               |   ^
       +---- lost -----+   +-- split: an idle slot takes the rear half of another's piece

A shard is named by its position in the epoch's order; `ShardPlan` knows which records these
are. How many batches it has is found out by feeding it: who feeds says `finished` with the
last one. Where a shard can be entered at any batch (`batches_per_shard` is given), slots that
would stand idle at an epoch's end take over what others have not come to yet.

Everything is arrays of whole numbers with one row a slot, so that a step of ten thousand
workers costs less than a millisecond.

Callers: `engines/loop.py`, `engines/feed.py` and `sharding/simulation.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.sharding.left_out import BatchId

Ints: TypeAlias = npt.NDArray[np.int64]

# Columns of a table of pieces; those in hand have the slot, and the steps it missed, as well.
_SHARD, _COMMITTED, _STOP, _DIGEST, _SLOT, _MISSED = range(6)
_NUM_WAITING_COLUMNS = 4
_NUM_IN_HAND_COLUMNS = 6
_LEAST_TO_SPLIT = 2


class Piece(NamedTuple):
    """What is left of a shard, or of a part of one.

    Attributes:
        shard: Position in the epoch's order.
        committed: Its next batch; those before are in the model or in somebody else's piece.
        stop: The batch it ends before; 0: where the shard ends. A shard may end earlier.
        digest: Rolling hash of the committed batches where they come from a pipeline that is
            replayed; 0 before the first one.
    """

    shard: int
    committed: int = 0
    stop: int = 0
    digest: int = 0


class Row(NamedTuple):
    """What one slot committed in one step or group of steps.

    Attributes:
        slot: Who.
        num_batches: How many further batches of the piece in its hand.
        finished: The shard has no further batch. With `num_batches` 0: not even one.
        digest: Rolling hash after the last of them.
    """

    slot: int
    num_batches: int
    finished: bool
    digest: int = 0


def _no_rows(columns: int) -> Ints:
    return np.empty((0, columns), np.int64)


@dataclass(frozen=True, eq=False)
class Ledger:
    """Who holds what, and what is done.

    Attributes:
        num_shards: Shards in an epoch.
        batches_per_shard: Batches in all but the last shard, where a shard can be entered at
            any of them; 0 where it can only be replayed from its start.
        epoch: The epoch being trained, from 0.
        dealt: Shards of this epoch's order that have been dealt.
        left_out: Batches whose records are left out, from the epoch of the batch on. They count
            like others: the batch itself is committed without an example.
    """

    num_shards: int
    batches_per_shard: int = 0
    epoch: int = 0
    dealt: int = 0
    left_out: tuple[BatchId, ...] = ()
    # Arrays are never changed in place: a ledger shares them with the one it came from.
    _waiting: Ints = field(default_factory=lambda: _no_rows(_NUM_WAITING_COLUMNS))
    _in_hand: Ints = field(default_factory=lambda: _no_rows(_NUM_IN_HAND_COLUMNS))

    # --- what it says ---------------------------------------------------------------------

    @property
    def waiting(self) -> list[Piece]:
        """Pieces whose slot was lost, first in line."""
        return [Piece(*row) for row in self._waiting.tolist()]

    @property
    def in_hand(self) -> dict[int, Piece]:
        """Slot -> the piece it works on."""
        return {row[_SLOT]: Piece(*row[:_SLOT]) for row in self._in_hand.tolist()}

    @property
    def epoch_done(self) -> bool:
        """Every batch of the epoch is committed."""
        return self.dealt == self.num_shards and not len(self._waiting) and not len(self._in_hand)

    @property
    def in_hand_table(self) -> Ints:
        """`in_hand` as one array: the columns of `Piece`, then slot and steps missed.

        Sorted by slot. It belongs to the ledger: not to be written to.
        """
        return self._in_hand

    def piece_of(self, slot: int) -> Piece | None:
        """Return what a slot holds."""
        at = np.searchsorted(self._in_hand[:, _SLOT], slot)
        if at == len(self._in_hand) or self._in_hand[at, _SLOT] != slot:
            return None
        return Piece(*self._in_hand[at, :_SLOT].tolist())

    def __eq__(self, other: object) -> bool:
        """Whether both say the same."""
        return (
            isinstance(other, Ledger)
            and self._counts == other._counts
            and np.array_equal(self._waiting, other._waiting)
            and np.array_equal(self._in_hand, other._in_hand)
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def _counts(self) -> tuple[int, int, int, int]:
        return self.num_shards, self.batches_per_shard, self.epoch, self.dealt

    # --- what happens to it ---------------------------------------------------------------

    def deal(self, slots: Iterable[int]) -> Ledger:
        """Give every slot without a piece one, as long as there are any, lowest slot first.

        First what was lost, then untouched shards, then the rear halves of the longest pieces
        in other hands.
        """
        wanting = _as_array(slots)
        idle = np.sort(wanting[~np.isin(wanting, self._in_hand[:, _SLOT])])
        # Each once. (`np.unique` would take most of a step's millisecond for ten thousand.)
        idle = idle[np.diff(idle, prepend=-1) > 0]
        if not len(idle) or self.epoch_done:
            return self
        again = min(len(idle), len(self._waiting))
        fresh = min(len(idle) - again, self.num_shards - self.dealt)
        given = np.zeros((again + fresh, _NUM_IN_HAND_COLUMNS), np.int64)
        given[:again, :_SLOT] = self._waiting[:again]
        given[again:, _SHARD] = np.arange(self.dealt, self.dealt + fresh)
        given[again:, _STOP] = self.batches_per_shard
        given[:, _SLOT] = idle[: again + fresh]
        return replace(
            self,
            dealt=self.dealt + fresh,
            _waiting=self._waiting[again:],
            _in_hand=_split(_with(self._in_hand, given), idle[again + fresh :]),
        )

    def advance(self, rows: Sequence[Row] | Ints) -> Ledger:
        """Record what was committed.

        Args:
            rows: At most one a slot; as an array, with the columns of `Row`.

        Raises:
            ValueError: A slot committed without holding a piece, committed nothing, committed
                more than its piece holds, or has two rows.
        """
        table = np.asarray(rows, np.int64).reshape(-1, len(Row._fields))
        slot, num_batches, finished, digest = table.T
        held = self._in_hand[:, _SLOT]
        at = np.searchsorted(held, slot)
        unknown = at == len(held)
        unknown |= np.append(held, -1)[at] != slot
        if unknown.any():
            raise ValueError(f"Slot {slot[unknown][0]} committed batches but holds no shard.")
        nothing = (num_batches < 0) | ((num_batches == 0) & (finished == 0))
        if nothing.any():
            raise ValueError(
                f"Slot {slot[nothing][0]} committed {num_batches[nothing][0]} batches."
            )
        if np.bincount(at).max(initial=0) > 1:
            raise ValueError(f"Slot {held[np.bincount(at).argmax()]} has more than one row.")
        committed = self._in_hand[at, _COMMITTED] + num_batches
        stop = self._in_hand[at, _STOP]
        if ((stop > 0) & (committed > stop)).any():
            # What follows is in somebody else's piece, and would be trained on twice.
            which = slot[(stop > 0) & (committed > stop)]
            raise ValueError(f"Slot {which[0]} committed more than its piece holds.")
        # Of a piece that has no `stop`, who feeds knows the end.
        done = (finished != 0) | (committed == stop)
        kept = np.ones(len(held), np.bool_)
        kept[at[done]] = False
        in_hand = self._in_hand.compress(kept, axis=0)
        # The others have moved up.
        at = (np.cumsum(kept) - 1)[at[~done]]
        in_hand[at, _COMMITTED] = committed[~done]
        in_hand[at, _DIGEST] = digest[~done]
        return replace(self, _in_hand=in_hand)

    def lost(self, slots: Iterable[int]) -> Ledger:
        """Put what these slots held first in line again, without its committed batches."""
        which = np.isin(self._in_hand[:, _SLOT], _as_array(slots))
        return self._put_back(self._in_hand, which)

    def missed(self, present: Iterable[int], patience: int) -> Ledger:
        """Count a step that slots took no part in; who misses too many has lost its piece.

        A replacement that comes in time goes on with what its slot holds.

        Args:
            present: Slots that took part.
            patience: Missed steps in a row after which a piece goes to somebody else; at least 1.

        Raises:
            ValueError: There is no patience at all, so that those present would lose theirs too.
        """
        if patience < 1:
            raise ValueError(f"A patience of {patience} steps; expected at least 1.")
        absent = ~np.isin(self._in_hand[:, _SLOT], _as_array(present))
        if not absent.any() and not self._in_hand[:, _MISSED].any():
            return self
        in_hand = self._in_hand.copy()
        in_hand[:, _MISSED] = np.where(absent, in_hand[:, _MISSED] + 1, 0)
        return self._put_back(in_hand, in_hand[:, _MISSED] >= patience)

    def next_epoch(self) -> Ledger:
        """Start the next epoch.

        Raises:
            ValueError: The current one is not done.
        """
        if not self.epoch_done:
            raise ValueError(f"Epoch {self.epoch} is not done: {self}")
        return Ledger(
            self.num_shards, self.batches_per_shard, self.epoch + 1, left_out=self.left_out
        )

    def leave_out(self, batches: Iterable[BatchId]) -> Ledger:
        """Leave out the records of these batches, but of none that was trained on after all."""
        more = {batch for batch in batches if not self._is_committed(batch)}
        if more <= set(self.left_out):
            return self
        return replace(self, left_out=tuple(sorted({*self.left_out, *more})))

    def _is_committed(self, batch: BatchId) -> bool:
        if batch.epoch != self.epoch:
            return batch.epoch < self.epoch
        if batch.shard >= self.dealt:
            return False
        open_pieces = np.concatenate([self._waiting, self._in_hand[:, :_SLOT]])
        own = open_pieces[open_pieces[:, _SHARD] == batch.shard]
        # Where the end of a piece is not known, it is where the shard ends.
        ahead = (own[:, _COMMITTED] <= batch.batch) & (
            (own[:, _STOP] == 0) | (batch.batch < own[:, _STOP])
        )
        return not ahead.any()

    def _put_back(self, in_hand: Ints, which: npt.NDArray[np.bool_]) -> Ledger:
        if not which.any():
            return self if in_hand is self._in_hand else replace(self, _in_hand=in_hand)
        return replace(
            self,
            _waiting=np.concatenate([in_hand[which, :_SLOT], self._waiting]),
            _in_hand=in_hand.compress(~which, axis=0),
        )

    # --- as JSON --------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "num_shards": self.num_shards,
            "batches_per_shard": self.batches_per_shard,
            "epoch": self.epoch,
            "dealt": self.dealt,
            "left_out": [list(batch) for batch in self.left_out],
            "waiting": self._waiting.tolist(),
            "in_hand": self._in_hand.tolist(),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Ledger:
        """Return the ledger `to_json` wrote."""

        def table(name: str, columns: int) -> Ints:
            return np.array(values[name], np.int64).reshape(-1, columns)

        return Ledger(
            num_shards=values["num_shards"],
            batches_per_shard=values["batches_per_shard"],
            epoch=values["epoch"],
            dealt=values["dealt"],
            # An earlier version's checkpoint does not say it.
            left_out=tuple(BatchId(*batch) for batch in values.get("left_out", ())),
            _waiting=table("waiting", _NUM_WAITING_COLUMNS),
            _in_hand=table("in_hand", _NUM_IN_HAND_COLUMNS),
        )


def _as_array(slots: Iterable[int]) -> Ints:
    # Ten thousand slots one by one would cost half of a step's millisecond.
    return np.asarray(slots if isinstance(slots, np.ndarray) else list(slots), np.int64)


def _with(in_hand: Ints, given: Ints) -> Ints:
    """Return a new table with rows, themselves sorted by slot, where their slots belong."""
    places = np.searchsorted(in_hand[:, _SLOT], given[:, _SLOT])
    return np.insert(in_hand, places, given, axis=0)


def _split(in_hand: Ints, idle: Ints) -> Ints:
    """Give each idle slot, one after the other, the rear half of the piece that is longest then.

    Of two that are equally long, the one in the lower slot's hand is split. The table is changed:
    it must not be anybody's yet.
    """
    while len(idle):
        # Where the end of a piece is not known, `left` is negative: it cannot be split.
        left = in_hand[:, _STOP] - in_hand[:, _COMMITTED]
        longest = left.max(initial=0)
        if longest < _LEAST_TO_SPLIT:
            break
        # All that are longer than any half that could be made come before those halves.
        (long,) = np.nonzero(left > longest - longest // 2)
        chosen = long[np.argsort(-left[long], kind="stable")][: len(idle)]
        taken = left[chosen] // 2
        halves = in_hand[chosen]
        halves[:, _COMMITTED] = halves[:, _STOP] - taken
        halves[:, _SLOT], idle = idle[: len(chosen)], idle[len(chosen) :]
        halves[:, [_DIGEST, _MISSED]] = 0
        in_hand[chosen, _STOP] -= taken
        in_hand = _with(in_hand, halves)
    return in_hand
