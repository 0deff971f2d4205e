"""Failure policy: ends a job whose workers keep dying at the same batch or without progress.

A worker that dies is replaced (`scaling_policy.py`), any number of times. But if a record makes the
process that reads it crash (a bug in a decoder, a batch that needs more memory than there is), each
replacement dies at the same batch, and the job would never end.

While a worker computes one batch, it prepares the following ones, so any of these may have caused
its death. After the second death at a batch, workers do one thing at a time in its shard
(`crash_note.py`), so that all further deaths are counted for the batch that causes them.

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

# (Is validation data, epoch, shard, batch), regardless of whether it was prepared or computed.
_Key: TypeAlias = tuple[bool, int, int, int]


@dataclass(frozen=True)
class RepeatedFailure:
    """A batch at which too many workers died.

    Attributes:
        batch: The batch that they were computing, preparing or evaluating.
        num_deaths: Number of workers that died at this batch.
        others: Other batches that the last of these workers was working on when it died; one of
            them may be the cause instead.
    """

    batch: BatchInWork
    num_deaths: int
    others: Sequence[BatchInWork] = ()


@dataclass
class FailureCounter:
    """Counts of workers' deaths at each batch, and of losses of all workers without progress.

    Attributes:
        furthest_step: The last step that any worker reached.
    """

    furthest_step: int = -1
    _deaths_at: dict[_Key, tuple[int, int]] = field(default_factory=dict)
    _known: set[_Key] = field(default_factory=set)
    _num_rounds: int = 0

    @property
    def suspects(self) -> Collection[tuple[int, int]]:
        """(epoch, shard) of each shard with a training batch at which more than one worker died."""
        return frozenset(
            (epoch, shard)
            for (is_validation, epoch, shard, _), (count, _) in self._deaths_at.items()
            if count >= _SUSPICIOUS_DEATHS and not is_validation
        )

    def count_death(self, batches: Iterable[BatchInWork], step: int) -> RepeatedFailure | None:
        """Count a worker's death against each batch that it was working on.

        Args:
            batches: The batches it was working on.
            step: The last step of the run so far.

        Returns:
            The batch at which too many workers have now died; None if there is none, or if it was
            returned before.
        """
        counted = [batch for batch in batches if _key(batch) not in self._known]
        for batch in counted:
            count, last_step = self._deaths_at.get(_key(batch), (0, step))
            if batch.work == "evaluating" and step != last_step:
                # The same shard is evaluated many times, so deaths count only at the same step.
                count = 0
            self._deaths_at[_key(batch)] = count + 1, step
        worst = max(counted, key=lambda batch: self._deaths_at[_key(batch)][0], default=None)
        if worst is None or self._deaths_at[_key(worst)][0] < MAX_DEATHS_AT_A_BATCH:
            return None
        num_deaths = self._deaths_at[_key(worst)][0]
        # Ignore this batch from now on, because a worker that was not informed yet may still die
        # there. Reset the others: they were not the cause.
        self._known.add(_key(worst))
        self._deaths_at.clear()
        self._num_rounds = 0
        return RepeatedFailure(worst, num_deaths, tuple(b for b in counted if b != worst))

    def count_total_loss(self, step: int) -> None:
        """Record that all workers were lost at the same time; fail if that happens too often.

        Args:
            step: The last step of the run so far.

        Raises:
            TrainingError: All workers were lost too many times without a further step.
        """
        self._num_rounds = 0 if step > self.furthest_step else self._num_rounds + 1
        self.furthest_step = max(self.furthest_step, step)
        if self._num_rounds >= MAX_ROUNDS_WITHOUT_A_STEP:
            raise TrainingError(
                f"All workers died {self._num_rounds} times without getting past step "
                f"{self.furthest_step:,}. Check their output, the memory of their machines and the "
                "records after that step. Run the same command to resume from the newest "
                "checkpoint."
            )


def _key(batch: BatchInWork) -> _Key:
    return batch.work == "evaluating", batch.epoch, batch.shard, batch.batch


@dataclass
class MemoryFailures:
    """Count of the workers that ran out of memory since the newest checkpoint.

    Attributes:
        limit: Number of such workers at which the job ends, because further replacements would not
            help.
        count: Number of such workers since the newest checkpoint.
    """

    limit: int
    count: int = 0
    _checkpoint: int = -1

    def count_and_check(self, checkpoint: int) -> bool:
        """Count another worker that ran out of memory; return whether there were too many.

        Args:
            checkpoint: Step of the newest checkpoint. If it is another one than in the last call,
                the count starts from 0 again.

        Returns:
            Whether the job has to end.
        """
        if checkpoint != self._checkpoint:
            self.count, self._checkpoint = 0, checkpoint
        self.count += 1
        return self.count >= self.limit
