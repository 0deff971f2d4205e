"""Computes per-example values, such as losses, with a function that takes a batch.

Callers: `loss.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elasticdl.data.batch import leaves, map_arrays


def one_by_one(function: Callable[..., tf.Tensor], *batch: Any, eager: bool) -> tf.Tensor:
    """Apply a function to batches of one example each.

    Args:
        function: Function of a batch -> float32 scalar.
        *batch: Its arguments: tensors in any nesting, with examples along the first axis.
        eager: Whether steps run uncompiled, so that the function cannot be traced.

    Returns:
        float32, one value per example.
    """

    def of_one(example: Any) -> tf.Tensor:
        return function(*map_arrays(lambda tensor: tensor[tf.newaxis], example))

    if eager:
        num_examples = int(tf.shape(leaves(batch)[0])[0])
        rows = [map_arrays(lambda t: t[i], batch) for i in range(num_examples)]  # noqa: B023
        return tf.stack([of_one(row) for row in rows])
    try:
        return tf.vectorized_map(of_one, batch, fallback_to_while_loop=False)
    except ValueError:
        # TensorFlow cannot vectorize one of the operations.
        spec = tf.TensorSpec([], tf.float32)
        return tf.map_fn(of_one, batch, fn_output_signature=spec)
