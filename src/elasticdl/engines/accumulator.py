"""A fixed logical batch: contributions are summed until there are enough, then make one update.

With `--global_batch_size`, an update is made of the same number of minibatches however many
workers bring them in, so that the learning curve does not depend on the workers: exactly in
size, statistically in which records meet in an update. An epoch's last update takes what is
left, as the last batch of an epoch does.

What is summed up so far is part of the state: a worker that joins takes it over.

Callers: the committers add, `loop.py` saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.training.trainer import Contribution

if TYPE_CHECKING:
    from elasticdl.training.trainer import State, Trainer

GRADIENTS = "accumulator/buffer"
"""The tensor of a checkpoint that holds the sum; in float16 it may have overflowed."""

_COUNTS = "accumulator/counts"


class Accumulator:
    """What is summed up for the next update.

    Args:
        trainer: Makes the update.
        batches_per_update: Minibatches that make one.

    Attributes:
        batches_per_update: The same.
        num_batches: Minibatches summed up since the last update.
    """

    def __init__(self, trainer: Trainer, batches_per_update: int) -> None:
        self._trainer = trainer
        self.batches_per_update = batches_per_update
        self._buffer: np.ndarray[Any, Any] | None = None
        self._num_examples = 0
        self.num_batches = 0

    @property
    def num_missing(self) -> int:
        """How many minibatches the next update still waits for."""
        return self.batches_per_update - self.num_batches

    def add(self, total: Contribution | None, num_batches: int, *, last: bool) -> None:
        """Add contributions, and make the update if that completes it.

        An update of batches without any example is none: it changes nothing.

        Args:
            total: Their sum; None if they have no example.
            num_batches: How many minibatches they are of, at most `num_missing`.
            last: No more follow in this epoch.
        """
        if total is not None:
            if self._buffer is None:
                self._buffer = total.buffer.copy()
            else:
                # In float16 gradients may be infinite; then there is no update.
                with np.errstate(invalid="ignore"):
                    self._buffer += total.buffer
            self._num_examples += total.num_examples
        self.num_batches += num_batches
        if last or self.num_missing <= 0:
            if self._buffer is not None:
                self._trainer.apply(Contribution(self._buffer, self._num_examples))
            self._buffer, self._num_examples, self.num_batches = None, 0, 0

    def state(self) -> State:
        """Return what is summed up, as tensors by name; nothing right after an update."""
        if not self.num_batches:
            return {}
        counts = np.array([self.num_batches, self._num_examples], np.int64)
        buffer = {} if self._buffer is None else {GRADIENTS: self._buffer.copy()}
        return {**buffer, _COUNTS: counts}

    def load_state(self, state: State) -> State:
        """Take over what `state` gave; return the tensors that are not of it."""
        self._buffer, self._num_examples, self.num_batches = None, 0, 0
        if GRADIENTS in state:
            self._buffer = np.array(state[GRADIENTS])
        if _COUNTS in state:
            self.num_batches, self._num_examples = map(int, state[_COUNTS])
        return _without(state, GRADIENTS, _COUNTS)


def _without(state: State, *names: str) -> Mapping[str, Any]:
    return {name: array for name, array in state.items() if name not in names}
