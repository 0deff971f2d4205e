"""Mixed precision: the loss scale of `mixed_float16`.

With this policy Keras wraps the optimizer in a `LossScaleOptimizer`: the loss is multiplied by a
scale, and the optimizer divides the gradients by it, skips an update whose gradients overflow, and
changes the scale. Between the two, gradients that workers sum are gradients of the loss itself: the
scale may have changed by the time other workers receive the sum.

    sums = gradient / loss_scale(optimizer)   # on each worker
    optimizer.apply_gradients(mean * loss_scale(optimizer))   # after the sum

An overflow is infinity or NaN in the sum as well, so all workers skip the same updates.

Callers: `trainer.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    import keras


def loss_scale(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Return the factor by which the optimizer scales the loss; 1 if it does not scale."""
    return tf.cast(optimizer.scale_loss(tf.constant(1.0)), tf.float32)
