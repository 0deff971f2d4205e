"""Gradient accumulation: sums gradients of a fixed number of minibatches, then applies one update.

With `--global_batch_size`, an update consists of the same number of minibatches on any number of
workers, so that the learning curve does not depend on the number of workers. Only the choice of
records in an update depends on that number. An epoch's last update takes the remaining minibatches,
as the last batch of an epoch takes the remaining records.

The sum so far is part of the state: a joining worker takes it over.

Callers: the committers add to the sum, `loop.py` saves it in checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.training.trainer import Contribution

if TYPE_CHECKING:
    from elasticdl.training.trainer import State, Trainer

GRADIENTS = "accumulator/buffer"
"""Name of the checkpoint tensor with the sum; in float16 it may have overflowed."""

_COUNTS = "accumulator/counts"


class Accumulator:
    """Sum of minibatches' contributions (gradients and counts); when complete, it is applied.

    Args:
        trainer: Trainer that applies the update.
        batches_per_update: Number of minibatches in an update.

    Attributes:
        batches_per_update: Number of minibatches in an update.
        num_batches: Minibatches added since the last update.
    """

    def __init__(self, trainer: Trainer, batches_per_update: int) -> None:
        self._trainer = trainer
        self.batches_per_update = batches_per_update
        self._buffer: np.ndarray[Any, Any] | None = None
        self._num_examples = 0
        self.num_batches = 0

    @property
    def num_missing(self) -> int:
        """Number of minibatches that the next update still needs."""
        return self.batches_per_update - self.num_batches

    def add(self, total: Contribution | None, num_batches: int, *, last: bool) -> None:
        """Add contributions to the sum; apply the update if it now has all of its minibatches.

        An update without any example changes nothing and is not counted as a step.

        Args:
            total: Sum of the contributions; None if their minibatches contain no example.
            num_batches: Number of minibatches in the sum, at most `num_missing`.
            last: Whether these are the last minibatches of the epoch; the update is then applied
                even if it has fewer minibatches than others.
        """
        if total is not None:
            if self._buffer is None:
                self._buffer = total.buffer.copy()
            else:
                # In float16 gradients may be infinite; then the update is skipped.
                with np.errstate(invalid="ignore"):
                    self._buffer += total.buffer
            self._num_examples += total.num_examples
        self.num_batches += num_batches
        if last or self.num_missing <= 0:
            if self._buffer is not None:
                self._trainer.apply(Contribution(self._buffer, self._num_examples))
            self._buffer, self._num_examples, self.num_batches = None, 0, 0

    def state(self) -> State:
        """Return the sum as tensors by name; empty right after an update."""
        if not self.num_batches:
            return {}
        counts = np.array([self.num_batches, self._num_examples], np.int64)
        buffer = {} if self._buffer is None else {GRADIENTS: self._buffer.copy()}
        return {**buffer, _COUNTS: counts}

    def load_state(self, state: State) -> State:
        """Load the sum from a checkpoint's tensors; return the other tensors, for the trainer.

        If the tensors contain no sum, the sum is empty from now on.
        """
        self._buffer, self._num_examples, self.num_batches = None, 0, 0
        if GRADIENTS in state:
            self._buffer = np.array(state[GRADIENTS])
        if _COUNTS in state:
            self.num_batches, self._num_examples = map(int, state[_COUNTS])
        return _without(state, GRADIENTS, _COUNTS)


def _without(state: State, *names: str) -> Mapping[str, Any]:
    return {name: array for name, array in state.items() if name not in names}
