"""Mixed precision: the loss scale of `mixed_float16`.

With this policy Keras wraps the optimizer in a `LossScaleOptimizer`: the loss is multiplied by a
scale, and the optimizer divides the gradients by it, skips an update whose gradients overflow, and
changes the scale. Workers send gradients that are not scaled, because the scale may have changed
by the time the sum is applied: each worker divides its gradients by the scale before they are
summed, and multiplies the mean by its present scale before it calls the optimizer.

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
