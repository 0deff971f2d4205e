"""Client state: what a party stores between rounds, and which model is its current one.

A party has two kinds of checkpoints:

    own      saved by `keep` after each round of training, to continue in the next round and to
             answer a repeated request
    global   saved by `take_over` when the party adopts a global model (request `sync`)

The party's current model, which its commands `eval` and `save` use, is the newest of both kinds.
Each checkpoint has a sequence number from one common counter, so that the newest is known even
after the process was killed. With a fusion of gradients, a party does not train: its own checkpoint
contains gradients and no model, and the global model that it received is saved as its current one.

Callers: `party.py`; `simulate.py` has an implementation in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore

_NUMBER = "number"
GRADIENTS = "gradients"
"""Metadata key of a checkpoint: it holds gradients, not a model."""


@dataclass(frozen=True)
class PartyModel:
    """Kind and round of a party's current model, without its weights, to show in its status.

    Attributes:
        is_global: Whether it is a global model from the aggregator. If not, the party trained it.
        round: The round that produced the model.
    """

    is_global: bool
    round: int

    @property
    def kind(self) -> str:
        """Kind of the model: `global` or `own`."""
        return "global" if self.is_global else "own"


@dataclass(frozen=True, eq=False)
class CurrentModel:
    """The current model of a party, with its weights.

    Attributes:
        checkpoint: Checkpoint with the model; its `step` is the number of the round.
        which: Whether the model is global or the party's own, and its round.
    """

    checkpoint: Checkpoint
    which: PartyModel


class ClientState(Protocol):
    """Interface to the storage of a party's checkpoints between rounds, on disk or in memory."""

    def after(self, history: str, round_number: int) -> Checkpoint | None:
        """Return the party's own checkpoint after a round; None if it is not stored.

        Args:
            history: ID of the training run, which stays the same when the run is resumed.
            round_number: The round in which `keep` saved the checkpoint.
        """
        ...

    def keep(self, checkpoint: Checkpoint) -> None:
        """Save the party's own checkpoint after a round; its `step` is the number of the round."""
        ...

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Save a global model as the party's current one; its `step` is the number of the round."""
        ...

    def current(self) -> CurrentModel | None:
        """Return the party's current model; None before it has trained or received one."""
        ...

    def which(self) -> PartyModel | None:
        """Return the current model's kind and round, without loading it; None if there is none."""
        ...


class DiskClientState:
    """Client state on disk, in a folder of the party.

    Args:
        store: Store for the party's own checkpoints, saved after each round.
        synced: Store for the global models that the party adopts.

    Raises:
        CorruptCheckpointError: A stored checkpoint is damaged.
    """

    def __init__(self, store: CheckpointStore, synced: CheckpointStore) -> None:
        self._store = store
        self._synced = synced
        kept = _newest(store), _newest(synced)
        current = latest(*kept)
        self._which = None if current is None else current.which
        self._last = max((number_of(one) for one in kept if one is not None), default=0)

    def after(self, history: str, round_number: int) -> Checkpoint | None:
        """Load the party's own checkpoint after a round; None if it is not stored."""
        self._store.wait()
        if round_number not in self._store.steps():
            return None
        found = self._store.load(round_number)
        return found if found.metadata["history"] == history else None

    def keep(self, checkpoint: Checkpoint) -> None:
        """Save the party's own checkpoint after a round."""
        self._store.save(self._numbered(checkpoint))
        if not checkpoint.metadata.get(GRADIENTS):
            self._which = PartyModel(is_global=False, round=checkpoint.step)

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Save the global model of a round as the party's current model."""
        self._synced.save(self._numbered(checkpoint))
        self._which = PartyModel(is_global=True, round=checkpoint.step)

    def current(self) -> CurrentModel | None:
        """Load the party's current model; None if it has none yet.

        Raises:
            CorruptCheckpointError: The newest checkpoint and all older ones are damaged.
        """
        return latest(_newest(self._store), _newest(self._synced))

    def which(self) -> PartyModel | None:
        """Return the current model's kind and round, without loading it; None if there is none."""
        return self._which

    def _numbered(self, checkpoint: Checkpoint) -> Checkpoint:
        self._last += 1
        return numbered(checkpoint, self._last)


def numbered(checkpoint: Checkpoint, number: int) -> Checkpoint:
    """Return a copy of a checkpoint with a sequence number; `latest` compares these numbers."""
    return replace(checkpoint, metadata={**checkpoint.metadata, _NUMBER: number})


def number_of(checkpoint: Checkpoint) -> int:
    """Return a checkpoint's sequence number; 0 if an older version of ElasticDL saved it."""
    return int(checkpoint.metadata.get(_NUMBER, 0))


def latest(own: Checkpoint | None, synced: Checkpoint | None) -> CurrentModel | None:
    """Return the party's current model: the checkpoint with the higher sequence number.

    A checkpoint with gradients (see the module) contains no model and is ignored.

    Args:
        own: The newest checkpoint that `keep` saved; None if there is none.
        synced: The newest checkpoint that `take_over` saved; None if there is none.

    Returns:
        The current model; None if neither checkpoint contains one.

    Example:
        >>> from elasticdl.artifacts.checkpoint_store import Checkpoint
        >>> own = numbered(Checkpoint(2, {}, {}), 7)
        >>> latest(own, numbered(Checkpoint(2, {}, {}), 8)).which.kind
        'global'
        >>> latest(own, numbered(Checkpoint(1, {}, {}), 6)).which.kind
        'own'
    """
    kept: Iterable[tuple[Checkpoint | None, bool]] = ((own, False), (synced, True))
    found = [
        CurrentModel(one, PartyModel(is_global, one.step))
        for one, is_global in kept
        if one is not None and not one.metadata.get(GRADIENTS)
    ]
    return max(found, key=lambda one: number_of(one.checkpoint), default=None)


def _newest(store: CheckpointStore) -> Checkpoint | None:
    store.wait()
    found = store.latest()
    return None if found is None else found.checkpoint
