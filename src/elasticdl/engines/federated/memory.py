"""What a party remembers: how it stood after its last rounds, and the global model it was given.

    train  --> keep(own)           the party's model is its own, of this round
    sync   --> take_over(global)   the party's model is the global one, of this round

Both count up one number, so whichever came last is the party's model, also after a kill. A party
that sent gradients has made no step: what it trained is no model, and the one it was sent is.

Callers: `party.py`; `simulate.py` has one that lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint, CheckpointStore

_NUMBER = "number"
GRADIENTS = "gradients"
"""In the metadata of what was kept: whether it is gradients and no model."""


@dataclass(frozen=True)
class Which:
    """Which model a party has.

    Attributes:
        is_global: It is the aggregator's, taken over as it was; else the party has trained it.
        round: Of which round.
    """

    is_global: bool
    round: int

    @property
    def kind(self) -> str:
        """`global` or `own`."""
        return "global" if self.is_global else "own"


@dataclass(frozen=True, eq=False)
class Current:
    """The model that a party has now.

    Attributes:
        checkpoint: Its state, under the number of its round.
        which: Which it is.
    """

    checkpoint: Checkpoint
    which: Which


class Memory(Protocol):
    """Where a party keeps what it remembers."""

    def after(self, history: str, round_number: int) -> Checkpoint | None:
        """Return how it stood after a round of a history; None if it does not know any more."""
        ...

    def keep(self, checkpoint: Checkpoint) -> None:
        """Remember how it stands after the round that is the checkpoint's step."""
        ...

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Remember the global model after the round that is the checkpoint's step."""
        ...

    def current(self) -> Current | None:
        """Return the model that the party has now; None before the first."""
        ...

    def which(self) -> Which | None:
        """Return which that is, at no cost."""
        ...


class DiskMemory:
    """What a party remembers, in a folder of its own.

    Args:
        store: The checkpoints of that folder.
        synced: Those of the global model.

    Raises:
        CorruptCheckpointError: What it has kept is damaged.
    """

    def __init__(self, store: CheckpointStore, synced: CheckpointStore) -> None:
        self._store = store
        self._synced = synced
        kept = _newest(store), _newest(synced)
        current = latest(*kept)
        self._which = None if current is None else current.which
        self._last = max((number_of(one) for one in kept if one is not None), default=0)

    def after(self, history: str, round_number: int) -> Checkpoint | None:
        """See `Memory`."""
        self._store.wait()
        if round_number not in self._store.steps():
            return None
        found = self._store.load(round_number)
        return found if found.metadata["history"] == history else None

    def keep(self, checkpoint: Checkpoint) -> None:
        """See `Memory`."""
        self._store.save(self._numbered(checkpoint))
        if not checkpoint.metadata.get(GRADIENTS):
            self._which = Which(is_global=False, round=checkpoint.step)

    def take_over(self, checkpoint: Checkpoint) -> None:
        """See `Memory`."""
        self._synced.save(self._numbered(checkpoint))
        self._which = Which(is_global=True, round=checkpoint.step)

    def current(self) -> Current | None:
        """See `Memory`.

        Raises:
            CorruptCheckpointError: It is damaged, and so are those before it.
        """
        return latest(_newest(self._store), _newest(self._synced))

    def which(self) -> Which | None:
        """See `Memory`."""
        return self._which

    def _numbered(self, checkpoint: Checkpoint) -> Checkpoint:
        self._last += 1
        return numbered(checkpoint, self._last)


def numbered(checkpoint: Checkpoint, number: int) -> Checkpoint:
    """Return a checkpoint that says the how-manieth it is of all that were kept."""
    return replace(checkpoint, metadata={**checkpoint.metadata, _NUMBER: number})


def number_of(checkpoint: Checkpoint) -> int:
    """Return the how-manieth it is; 0 for one of the time before they were counted."""
    return int(checkpoint.metadata.get(_NUMBER, 0))


def latest(own: Checkpoint | None, synced: Checkpoint | None) -> Current | None:
    """Return which of the two a party has now.

    Example:
        >>> from elasticdl.artifacts.checkpoint import Checkpoint
        >>> own = numbered(Checkpoint(2, {}, {}), 7)
        >>> latest(own, numbered(Checkpoint(2, {}, {}), 8)).which.kind
        'global'
        >>> latest(own, numbered(Checkpoint(1, {}, {}), 6)).which.kind
        'own'
    """
    kept: Iterable[tuple[Checkpoint | None, bool]] = ((own, False), (synced, True))
    found = [
        Current(one, Which(is_global, one.step))
        for one, is_global in kept
        if one is not None and not one.metadata.get(GRADIENTS)
    ]
    return max(found, key=lambda one: number_of(one.checkpoint), default=None)


def _newest(store: CheckpointStore) -> Checkpoint | None:
    store.wait()
    found = store.latest()
    return None if found is None else found.checkpoint
