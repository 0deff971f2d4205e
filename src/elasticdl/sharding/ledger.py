"""Which slot trains on which batches: a value that changes, and nothing else.

The ledger is told what committed and answers with a new ledger. It holds no data, no clock
and no connection, so every failure can be replayed in a unit test. It is part of the model
state: checkpointed with the weights and handed to a new worker together with them, so no
queue beside the model can disagree with it.

    to deal --deal--> in hand --finished--> done
       ^                 |
       +----- lost ------+   (its uncommitted batches, first in line again)

A shard is named by its position in the epoch's order; `ShardPlan` knows which records these
are. How many batches it has is not known here: records say it at once, a user's pipeline only
when it ends. Who feeds the batches says `finished` with the last one.

Callers: `engines/loop.py` and `engines/feed.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Piece:
    """What is left of a shard.

    Attributes:
        shard: Position in the epoch's order.
        committed: Batches of it that are in the model.
        digest: Rolling hash of those batches where they come from a pipeline that is
            replayed; 0 before the first one.
    """

    shard: int
    committed: int = 0
    digest: int = 0


@dataclass(frozen=True)
class Row:
    """What one slot committed in one step or group of steps.

    Attributes:
        slot: Who.
        num_batches: How many further batches of the piece in its hand.
        finished: The last of them was the shard's last. With `num_batches` 0: the shard had
            no batch at all.
        digest: Rolling hash after the last of them.
    """

    slot: int
    num_batches: int
    finished: bool
    digest: int = 0


@dataclass(frozen=True)
class Ledger:
    """Who holds what, and what is done.

    Attributes:
        num_shards: Shards in an epoch.
        epoch: The epoch being trained, from 0.
        dealt: Shards of this epoch's order that have been dealt.
        waiting: Pieces whose slot was lost, first in line.
        in_hand: Slot and piece, sorted by slot.
    """

    num_shards: int
    epoch: int = 0
    dealt: int = 0
    waiting: tuple[Piece, ...] = ()
    in_hand: tuple[tuple[int, Piece], ...] = ()

    @property
    def epoch_done(self) -> bool:
        """Every batch of the epoch is committed."""
        return self.dealt == self.num_shards and not self.waiting and not self.in_hand

    def piece_of(self, slot: int) -> Piece | None:
        """Return what a slot holds."""
        return dict(self.in_hand).get(slot)

    def deal(self, slots: Iterable[int]) -> Ledger:
        """Give every slot without a piece one, as long as there are any, lowest slot first."""
        in_hand = dict(self.in_hand)
        waiting = list(self.waiting)
        dealt = self.dealt
        for slot in sorted(set(slots) - set(in_hand)):
            if waiting:
                in_hand[slot] = waiting.pop(0)
            elif dealt < self.num_shards:
                in_hand[slot] = Piece(dealt)
                dealt += 1
        return replace(
            self, dealt=dealt, waiting=tuple(waiting), in_hand=tuple(sorted(in_hand.items()))
        )

    def advance(self, rows: Iterable[Row]) -> Ledger:
        """Record what was committed.

        Raises:
            ValueError: A slot committed without holding a piece, or committed nothing.
        """
        in_hand = dict(self.in_hand)
        for row in rows:
            piece = in_hand.get(row.slot)
            if piece is None:
                raise ValueError(f"Slot {row.slot} committed batches but holds no shard.")
            if row.num_batches < 0 or (row.num_batches == 0 and not row.finished):
                raise ValueError(f"Slot {row.slot} committed {row.num_batches} batches.")
            if row.finished:
                del in_hand[row.slot]
            else:
                in_hand[row.slot] = Piece(
                    piece.shard, piece.committed + row.num_batches, row.digest
                )
        return replace(self, in_hand=tuple(sorted(in_hand.items())))

    def lost(self, slot: int) -> Ledger:
        """Put what a slot held first in line again, without its committed batches."""
        piece = self.piece_of(slot)
        if piece is None:
            return self
        return replace(
            self,
            waiting=(piece, *self.waiting),
            in_hand=tuple((s, p) for s, p in self.in_hand if s != slot),
        )

    def next_epoch(self) -> Ledger:
        """Start the next epoch.

        Raises:
            ValueError: The current one is not done.
        """
        if not self.epoch_done:
            raise ValueError(f"Epoch {self.epoch} is not done: {self}")
        return Ledger(self.num_shards, self.epoch + 1)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Ledger:
        """Return the ledger `to_json` wrote."""
        return Ledger(
            num_shards=values["num_shards"],
            epoch=values["epoch"],
            dealt=values["dealt"],
            waiting=tuple(Piece(**piece) for piece in values["waiting"]),
            in_hand=tuple((slot, Piece(**piece)) for slot, piece in values["in_hand"]),
        )
