"""Interfaces between the training loop and an engine.

An engine provides a `Committer`, an `EventSink` and a `CheckpointSink`. A rank is the number of a
worker; a lease is the batches of a shard that are assigned to a rank.

Callers: `loop.py` uses the interfaces; `in_process.py` and `elastic/` implement them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint, SavedCheckpoint
    from elasticdl.engines.feed import TrainingBatch
    from elasticdl.engines.train_progress import TrainProgress
    from elasticdl.events import Event
    from elasticdl.sharding.ledger import LeaseUpdate
    from elasticdl.sharding.left_out import BatchId
    from elasticdl.training.trainer import MetricStates


@dataclass(frozen=True, eq=False)
class Commit:
    """Result of a commit, summed over all participants.

    Attributes:
        rows: Update of the lease of each rank: how many of its batches are in the commit.
        ranks: Ranks that took part; they are assigned further batches.
        metrics: Metric states over all examples of the commit; empty if there was no example.
        losses: Loss of each step of this process, as float32; not summed over participants.
        lost: Ranks whose worker is known to be dead.
        stop: Whether training ends here.
        left_out: Batches whose records all workers skip from here on.
        num_left_out: Records missing from this commit's batches because they are skipped.
        num_examples: Examples in this commit's batches.
    """

    rows: Sequence[LeaseUpdate]
    ranks: Collection[int]
    metrics: MetricStates = field(default_factory=dict)
    losses: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, np.float32))
    lost: Collection[int] = ()
    stop: bool = False
    left_out: Sequence[BatchId] = ()
    num_left_out: int = 0
    num_examples: int = 0


class Committer(Protocol):
    """Interface to apply batches to the model: the only part of the loop that differs by engine.

    Attributes:
        max_group_steps: Maximum number of batches in one commit.
        patience_steps: Number of commits that a rank may miss before its lease is released, so that
            another rank trains on these batches.
    """

    max_group_steps: int
    patience_steps: int

    def begin(self, *, ahead: bool) -> None:
        """Agree on the participants of the next commit.

        A process that has fallen behind takes over a peer's state here (`Loop.join`).

        Args:
            ahead: Whether `commit` may compute while the agreement is still pending. If this
                process then takes over a peer's state, the computation is discarded and `commit`
                returns None.
        """
        ...

    def commit(
        self, batches: Sequence[TrainingBatch], progress: TrainProgress, *, stop: bool
    ) -> Commit | None:
        """Apply one update per batch, together with all workers.

        A worker without a batch takes part too, because all workers must make the same updates.

        Args:
            batches: This process's batches.
            progress: The training progress.
            stop: Whether the callbacks of this process request the end of training here. If the
                callbacks of this commit's leader request it, no further batch of any process is
                applied.

        Returns:
            The commit, or None if there was no agreement; in that case nothing has changed.
        """
        ...

    def commit_evaluation(
        self, states: MetricStates, row: LeaseUpdate | None, *, begins: bool
    ) -> Commit | None:
        """Sum the metric states that all workers computed, each on its own shard of the validation.

        Args:
            states: This process's states.
            row: Update of this process's lease of the validation data; None if it has none.
            begins: Whether this is the first commit of the evaluation.

        Returns:
            The commit, or None if there was no agreement; in that case nothing has changed.
        """
        ...

    def leads(self) -> bool:
        """Return whether this process is the leader.

        The leader is the one participant that saves checkpoints and whose callbacks may end
        training.
        """
        ...


class EventSink(Protocol):
    """Receiver of events: `event_file.EventLog`, or an object that forwards them to one."""

    def write(self, event: Event) -> None:
        """Add an event."""
        ...

    def publish(self) -> None:
        """Wait until all events so far are stored; a sink that forwards events need not wait."""
        ...


class CheckpointSink(Protocol):
    """Receiver of checkpoints: `artifacts.checkpoint_store.CheckpointStore`, or a forwarder."""

    def save_in_background(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Start saving a checkpoint; `best` marks it as the best one so far."""
        ...

    def wait(self) -> None:
        """Wait until all checkpoints passed to `save_in_background` are written."""
        ...

    def take_saved(self) -> list[SavedCheckpoint]:
        """Return the checkpoints that were written since the last call, for the event log."""
        ...
