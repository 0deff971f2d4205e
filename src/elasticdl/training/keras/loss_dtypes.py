"""Casts outputs and labels to the dtypes that a model file's loss function receives in `fit`.

`fit` casts both to floatx (float32) before it calls a loss function, so that a loss of whole-number
labels neither overflows nor fails, and is not computed in half precision. So does this module, with
one exception: labels are not cast for a function that rejects cast labels, such as TensorFlow's
cross entropy of class indices, for which `fit` would fail.

Callers: `loss.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from elasticdl.training.keras.labels import as_numpy, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable


class LossDtypes:
    """Casts the arguments of one loss function as `fit` does.

    Args:
        labels_as_numpy: Whether the function treats labels as numpy arrays.
    """

    def __init__(self, *, labels_as_numpy: bool) -> None:
        self._labels_as_numpy = labels_as_numpy
        # None until the first labels that are not of floatx.
        self._casts_labels: bool | None = None

    def cast(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any
    ) -> tuple[Any, Any]:
        """Return outputs and labels in floatx, or labels as they are if the function needs that.

        Runs within a compiled step. Nested outputs or labels are returned unchanged: `fit` would
        call a loss for each of them.

        Args:
            function: Function (outputs, labels) -> loss.
            outputs: The model's outputs.
            labels: Labels of the batch, as tensors.
        """
        if not (_is_number(outputs) and _is_number(labels)):
            return outputs, labels
        floatx = tf.as_dtype(keras.config.floatx())
        if labels.dtype != floatx:
            if self._casts_labels is None:
                self._casts_labels = self._accepts(function, outputs, labels, floatx)
            labels = tf.cast(labels, floatx) if self._casts_labels else labels
        return (outputs if outputs.dtype == floatx else tf.cast(outputs, floatx)), labels

    def _accepts(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any, dtype: tf.DType
    ) -> bool:
        def traced(outputs: Any, labels: Any) -> Any:
            return unwrap(function(outputs, as_numpy(labels) if self._labels_as_numpy else labels))

        specs = [tf.TensorSpec(tensor.shape, dtype) for tensor in (outputs, labels)]
        try:
            with tf.init_scope():
                tf.function(traced).get_concrete_function(*specs)
        except Exception:  # noqa: BLE001 - the step raises it again, if it has another cause
            return False
        return True


def _is_number(values: Any) -> bool:
    if not tf.is_tensor(values) or not hasattr(values, "dtype"):
        return False
    dtype = values.dtype
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)
