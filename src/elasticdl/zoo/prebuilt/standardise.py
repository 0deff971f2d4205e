"""Standardises numbers to mean 0 and variance 1, from sums that are combined over workers.

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

from typing import Any

import keras

# With fewer rows there is no variance.
_FEWEST = 2.0
# The square of float32's resolution, with some margin: a smaller variance counts as none.
_RELATIVE_VARIANCE = 1e-12


class Standardise(keras.layers.Layer):
    """Layer that standardises numbers to mean 0 and variance 1; missing or constant ones become 0.

    Mean and variance are those of all rows in earlier batches, in float64. So a row's value does
    not depend on its own batch, and several workers together have the same sums as one process.
    After one epoch, mean and variance are those of the whole data, unlike the moving averages of a
    BatchNormalization, which need many batches. Until two rows have been seen, every number becomes
    0.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the non-trainable weights: count, sum and sum of squares of each number."""
        sums: dict[str, Any] = {
            "shape": (input_shape[-1],),
            "initializer": "zeros",
            "dtype": "float64",
            "autocast": False,
            "trainable": False,
        }
        self._count = self.add_weight(name="count", **sums)
        self._sum = self.add_weight(name="sum", **sums)
        self._sum_of_squares = self.add_weight(name="sum_of_squares", **sums)
        self.built = True

    def call(self, inputs: Any, missing: Any = None, training: bool | None = None) -> Any:
        """Return the standardised numbers.

        Args:
            inputs: Float [batch, numbers].
            missing: 1 where a number is missing, else 0, of the same shape; None if none is.
            training: Whether to add the rows to the sums by which later batches are standardised.

        Returns:
            float32 [batch, numbers].
        """
        ops = keras.ops
        values = ops.cast(inputs, "float64")
        known = ops.ones_like(values) if missing is None else 1.0 - ops.cast(missing, "float64")
        count = ops.maximum(self._count, 1.0)
        mean = self._sum / count
        variance = self._sum_of_squares / count - ops.square(mean)
        varies = ops.logical_and(
            self._count >= _FEWEST, variance > _RELATIVE_VARIANCE * ops.square(mean)
        )
        deviation = ops.sqrt(ops.where(varies, variance, 1.0))
        known_and_varies = known * ops.cast(varies, "float64")
        standardised = (values - mean) / deviation * known_and_varies
        if training:
            self._count.assign(self._count + ops.sum(known, axis=0))
            self._sum.assign(self._sum + ops.sum(values * known, axis=0))
            squares = ops.sum(ops.square(values) * known, axis=0)
            self._sum_of_squares.assign(self._sum_of_squares + squares)
        return ops.cast(standardised, "float32")
