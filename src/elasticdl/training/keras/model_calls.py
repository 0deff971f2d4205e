"""Calls a Keras model for its outputs, and undoes what a call changes of its state.

A layer may change statistics and trained weights in a call. Only steps and updates may keep such
changes, so whatever else calls the model restores them.

Callers: `trainer.py`, `split_checks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.training.keras import moved_weights, reduction
from elasticdl.training.keras.statistics import means_of

if TYPE_CHECKING:
    import keras

    from elasticdl.training.keras.inputs import Adapter
    from elasticdl.training.keras.seeds import StepSeeder


class ModelCalls:
    """Calls one model with features of a batch.

    Args:
        model: The model.
        adapt: Converts a batch's features to the model's input.
        trained: The trained weights.
        statistics: The variables that training changes without a gradient.
        seeds: Sets the seeds of the model's layers.

    Attributes:
        model: The model.
        trained: The trained weights.
        statistics: The statistics.
        moved: Trained weights that a call of the model sets; known after the first call of
            `Trainer.gradients`.
    """

    def __init__(
        self,
        model: keras.Model,
        adapt: Adapter,
        trained: Sequence[Any],
        statistics: Sequence[Any],
        seeds: StepSeeder,
    ) -> None:
        self.model = model
        self.moved: list[Any] = []
        self.trained, self.statistics = trained, statistics
        self._adapt, self._seeds = adapt, seeds

    def without_trace(self, features: Any, at: tf.Tensor, *, training: bool = False) -> Any:
        """Return the model's outputs, and restore the statistics that the call changes.

        A layer may run as in training even in inference, and then change its statistics.

        Args:
            features: Features of some examples.
            at: Step and rank, which determine the random numbers: int64 [2].
            training: Whether the model runs as in training.
        """
        before = [tf.identity(v.value) for v in self.statistics]
        self._seeds.set(at)
        outputs = self.model(self._adapt(features), training=training)
        with tf.control_dependencies(leaves(outputs)):
            for variable, old in zip(self.statistics, before, strict=True):
                variable.assign(old)
            return map_arrays(_after, outputs)

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs for features, uncompiled and without side effects."""
        return self.without_trace(features, tf.zeros([2], tf.int64))

    def in_training(self, features: Any, step: int, rank: int) -> int:
        """Call the model in training mode, uncompiled and without a gradient.

        What the call changes is kept, unless the caller restores it.

        Args:
            features: Features of some examples.
            step: Number of the step whose random numbers are drawn.
            rank: Rank of the worker, likewise.

        Returns:
            Number of losses that layers have added.
        """
        self._seeds.set(tf.constant([step, rank], tf.int64))
        self.model(self._adapt(features), training=True)
        return len(self.model.losses)

    def unmoved(self) -> AbstractContextManager[None]:
        """Context manager: on exit, restores the variables that calls of the model change."""
        return moved_weights.restored([*self.statistics, *self.moved])

    def restored(self) -> AbstractContextManager[None]:
        """Context manager: on exit, restores all trained weights and statistics."""
        return moved_weights.restored([*self.trained, *self.statistics])

    def moves_statistics(self, features: Any) -> bool:
        """Return whether a call in training mode changes a statistic."""
        if not self.statistics:
            return False
        before = [np.array(v.numpy()) for v in self.statistics]
        with self.unmoved():
            self.model(self._adapt(features), training=True)
            after = [v.numpy() for v in self.statistics]
        return any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))

    def normalizes_by_batch(self, features: Any) -> bool:
        """Return whether a call in inference mode changes a BatchNormalization's statistics."""
        known = means_of(self.model)
        means = [v for v in self.statistics if id(v) in known]
        before = [np.array(v.numpy()) for v in means]
        with self.unmoved():
            self.model(self._adapt(features), training=False)
            return any(
                not np.array_equal(old, v.numpy()) for old, v in zip(before, means, strict=True)
            )


def _after(output: tf.Tensor) -> tf.Tensor:
    """Copy an output; within `tf.control_dependencies`, the copy waits for the given operations.

    Only tensors created within that block wait. Here the operations restore statistics, so these
    are restored before the output is used. The copy has the mask and the logits that Keras attaches
    to the output.
    """
    waited = tf.identity(output)
    reduction.attach_mask(waited, reduction.mask_of(output))
    # A loss `from_logits` finds the logits of a softmax here, in Keras as in training.
    if hasattr(output, "_keras_logits"):
        waited._keras_logits = output._keras_logits  # noqa: SLF001 - Keras has no public name
    return waited
