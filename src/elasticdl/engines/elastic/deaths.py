"""Counts deaths that will happen again: at the same batch, or of all workers without progress.

A worker that dies is replaced, however often. But if a record makes the process that reads it
crash (a bug in a decoder, a batch that needs more memory than there is), each replacement dies in
the same place, and the job would never end.

Callers: `controller.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticdl.errors import TrainingError

if TYPE_CHECKING:
    from elasticdl.engines.elastic.crash_note import BatchInWork

MAX_DEATHS_AT_A_BATCH = 5
MAX_ROUNDS_WITHOUT_A_STEP = 10


@dataclass
class Deaths:
    """The deaths of a run so far.

    Attributes:
        furthest_step: The last step that any worker reached.
    """

    furthest_step: int = -1
    _at: dict[BatchInWork, tuple[int, int]] = field(default_factory=dict)
    _num_rounds: int = 0

    def at(self, batches: Iterable[BatchInWork], step: int) -> None:
        """Count the death of a worker.

        Args:
            batches: What it was working on.
            step: How far the training was.

        Raises:
            TrainingError: It is one too many at a batch.
        """
        for batch in batches:
            count, last_step = self._at.get(batch, (0, step))
            if batch.work == "evaluating" and step != last_step:
                # The same shard is evaluated again and again.
                count = 0
            self._at[batch] = count + 1, step
            if count + 1 >= MAX_DEATHS_AT_A_BATCH:
                others = "".join(f" (and {other})" for other in batches if other != batch)
                raise TrainingError(
                    f"{count + 1} workers died while {batch}{others}. A record may crash the "
                    "process that reads it, or the batch may need more memory than there is. Look "
                    "at these records with `elasticdl data show`, leave them out, or take a "
                    "smaller --minibatch_size. The same command resumes from the newest checkpoint."
                )

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
