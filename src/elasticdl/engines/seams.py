"""What an engine gives to the loop: who commits, where events go, what to evaluate on.

Callers: `loop.py` uses it; `in_process.py` and `elastic/` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint, SavedCheckpoint
    from elasticdl.data.batch import Batch
    from elasticdl.data.record_source import RecordSource
    from elasticdl.engines.feed import FedBatch
    from elasticdl.engines.place import Place
    from elasticdl.events import Event
    from elasticdl.sharding.ledger import Row
    from elasticdl.sharding.left_out import BatchId
    from elasticdl.training.trainer import MetricStates


@dataclass(frozen=True, eq=False)
class Commit:
    """What was committed, by whomever.

    Attributes:
        rows: What each slot brought in.
        slots: Who took part and gets further batches.
        metrics: Metric states over all examples of it; empty if there was none.
        losses: One float32 for each step this process made itself.
        lost: Slots whose worker is known to be dead.
        stop: The training ends here.
        left_out: Batches whose records all workers leave out from here on.
        num_left_out: Records that the batches of this commit lack for that reason.
    """

    rows: Sequence[Row]
    slots: Collection[int]
    metrics: MetricStates = field(default_factory=dict)
    losses: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, np.float32))
    lost: Collection[int] = ()
    stop: bool = False
    left_out: Sequence[BatchId] = ()
    num_left_out: int = 0


class Committer(Protocol):
    """Brings batches into the model: the one thing engines do differently.

    Attributes:
        max_group_steps: How many batches one commit may bring in.
        patience_steps: Commits a slot may miss before its piece goes to another.
    """

    max_group_steps: int
    patience_steps: int

    def begin(self, *, ahead: bool) -> None:
        """Agree on who takes part in the next commit.

        A process that had fallen behind takes over a peer's state meanwhile (`Loop.join`).

        Args:
            ahead: `commit` may compute meanwhile. If this process takes over another state, that
                counts for nothing and `commit` returns None.
        """
        ...

    def commit(self, batches: Sequence[FedBatch], place: Place, *, stop: bool) -> Commit | None:
        """Make one update for each batch, or with no batch take part in that of others.

        Args:
            batches: Those of this process.
            place: Where the training is.
            stop: The callbacks of this process ask for the end here. If those of the one that
                leads this commit do, no batch counts any more, of whomever.

        Returns:
            None if there was no agreement: then nothing has happened.
        """
        ...

    def commit_evaluation(self, states: MetricStates, row: Row | None) -> Commit | None:
        """Add up what the workers measured, each on its own shard of the validation data."""
        ...

    def leads(self) -> bool:
        """Whether this process hands out checkpoints, and its callbacks may end the training."""
        ...


class EventSink(Protocol):
    """Takes events: `events.EventLog`, or what carries them to one."""

    def write(self, event: Event) -> None:
        """Take one."""
        ...

    def publish(self) -> None:
        """Make sure of those before."""
        ...


class CheckpointSink(Protocol):
    """Takes checkpoints: `artifacts.checkpoint.CheckpointStore`, or what carries them to one."""

    def save_in_background(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Take one."""
        ...

    def wait(self) -> None:
        """Return when nothing is being written."""
        ...

    def take_saved(self) -> list[SavedCheckpoint]:
        """Return what was written since the last call."""
        ...


@dataclass(frozen=True)
class Validation:
    """The records to evaluate on while training.

    Attributes:
        num_shards: Into how many they are cut.
        batches: Number of a shard -> its batches.
        name: Number of a shard -> files and numbers of its records; empty where they are unknown.
        source: What they are read from; None where batches do not come from records.
    """

    num_shards: int
    batches: Callable[[int], Iterator[Batch]]
    name: Callable[[int], str] = lambda _: ""
    source: RecordSource | None = None
