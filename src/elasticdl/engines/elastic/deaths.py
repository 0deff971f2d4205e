"""Counts deaths that will happen again: at the same batch, or of all workers without progress.

A worker that dies is replaced, however often. But if a record makes the process that reads it
crash (a bug in a decoder, a batch that needs more memory than there is), each replacement dies in
the same place, and the job would never end.

While a worker computes on one batch it makes those that follow, so its death has two suspects.
After the second death at a batch, workers that come to its shard do one thing at a time
(`crash_note.py`): the batch that kills has all of the deaths that follow.

Callers: `controller.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from elasticdl.errors import TrainingError

if TYPE_CHECKING:
    from elasticdl.engines.elastic.crash_note import BatchInWork

MAX_DEATHS_AT_A_BATCH = 5
MAX_ROUNDS_WITHOUT_A_STEP = 10
MAX_MEMORY_LOSSES_A_WORKER = 3
_SUSPICIOUS_DEATHS = 2

# Of the validation data or not, epoch, shard, batch: whether it was made or computed on.
_Key: TypeAlias = tuple[bool, int, int, int]


@dataclass(frozen=True)
class TooMany:
    """A batch at which too many workers died.

    Attributes:
        batch: The one that most of them died at.
        num_deaths: How many.
        others: What the last of them was working on besides.
    """

    batch: BatchInWork
    num_deaths: int
    others: Sequence[BatchInWork] = ()


@dataclass
class Deaths:
    """The deaths of a run so far.

    Attributes:
        furthest_step: The last step that any worker reached.
    """

    furthest_step: int = -1
    _at: dict[_Key, tuple[int, int]] = field(default_factory=dict)
    _known: set[_Key] = field(default_factory=set)
    _num_rounds: int = 0

    @property
    def suspects(self) -> Collection[tuple[int, int]]:
        """(epoch, shard) of the training batches at which more than one worker died."""
        return frozenset(
            (epoch, shard)
            for (is_validation, epoch, shard, _), (count, _) in self._at.items()
            if count >= _SUSPICIOUS_DEATHS and not is_validation
        )

    def at(self, batches: Iterable[BatchInWork], step: int) -> TooMany | None:
        """Count the death of a worker.

        Args:
            batches: What it was working on.
            step: How far the training was.

        Returns:
            The batch at which this is one too many, the first time it is.
        """
        counted = [batch for batch in batches if _key(batch) not in self._known]
        for batch in counted:
            count, last_step = self._at.get(_key(batch), (0, step))
            if batch.work == "evaluating" and step != last_step:
                # The same shard is evaluated again and again.
                count = 0
            self._at[_key(batch)] = count + 1, step
        worst = max(counted, key=lambda batch: self._at[_key(batch)][0], default=None)
        if worst is None or self._at[_key(worst)][0] < MAX_DEATHS_AT_A_BATCH:
            return None
        num_deaths = self._at[_key(worst)][0]
        # A worker that has not heard of it yet may die there once more; others are innocent.
        self._known.add(_key(worst))
        self._at.clear()
        self._num_rounds = 0
        return TooMany(worst, num_deaths, tuple(b for b in counted if b != worst))

    def of_all(self, step: int) -> None:
        """Count that no worker is left.

        Args:
            step: How far the training was.

        Raises:
            TrainingError: No further step was made for too many times.
        """
        self._num_rounds = 0 if step > self.furthest_step else self._num_rounds + 1
        self.furthest_step = max(self.furthest_step, step)
        if self._num_rounds >= MAX_ROUNDS_WITHOUT_A_STEP:
            raise TrainingError(
                f"All workers died {self._num_rounds} times without getting further than step "
                f"{self.furthest_step:,}. Look at what they printed, at the memory of their "
                "machines and at the records that follow. The same command resumes from the "
                "newest checkpoint."
            )


def _key(batch: BatchInWork) -> _Key:
    return batch.work == "evaluating", batch.epoch, batch.shard, batch.batch


@dataclass
class MemoryLosses:
    """The workers that ran out of memory since the newest checkpoint.

    Attributes:
        limit: How many end the job: more replacements would not help.
        count: How many there were.
    """

    limit: int
    count: int = 0
    _checkpoint: int = -1

    def are_too_many(self, checkpoint: int) -> bool:
        """Count another one.

        Args:
            checkpoint: Step of the newest checkpoint.

        Returns:
            Whether the job has to end.
        """
        if checkpoint != self._checkpoint:
            self.count, self._checkpoint = 0, checkpoint
        self.count += 1
        return self.count >= self.limit
