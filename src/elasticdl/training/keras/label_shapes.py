"""Gives labels of one number per example the shape that a loss or metric function needs.

    outputs [n, 1], labels [n]      outputs - labels has the shape [n, n], so its mean is wrong
    outputs [n], labels [n, 1]      the same

For losses, `fit` reshapes such labels to the shape of the outputs. So does this module, unless the
function is right with the given shape, because it reshapes labels or outputs by itself. For metrics
`fit` does not. Their labels are reshaped if ElasticDL chose the shape, because the model file has
no input function; otherwise there is a warning.

Callers: `loss.py`, `metrics.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from elasticdl.training.keras.labels import as_numpy, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("elasticdl")

# A length that occurs nowhere else. Shapes are compared because equal labels hide the mistake in
# the values.
_ROWS = 8191
_PAIR = 2


class KerasLabelShape:
    """The shape in which one loss or metric function gets labels.

    Args:
        where: `file:line` of the function, for the warning.
        what: What the function is, such as "the loss".
        labels_as_numpy: Whether it treats labels as numpy arrays.
        may_reshape: Whether labels may be reshaped; otherwise there is only a warning.
    """

    def __init__(
        self, where: str, what: str, *, labels_as_numpy: bool, may_reshape: bool = True
    ) -> None:
        self._where, self._what = where, what
        self._labels_as_numpy, self._may_reshape = labels_as_numpy, may_reshape
        # None until the first labels whose shape differs from that of the outputs.
        self._reshapes: bool | None = None

    def fitted(self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> Any:
        """Return labels in the shape that a function needs for these outputs.

        Runs within a compiled step.

        Args:
            function: Function (outputs, labels) -> loss or metric.
            outputs: The model's outputs.
            labels: Labels of the batch, as tensors.
        """
        if not _differ_by_an_axis(outputs, labels):
            return labels
        if self._reshapes is None:
            self._reshapes = self._find(function, outputs, labels)
        if not self._reshapes:
            return labels
        if outputs.shape.rank == _PAIR:
            return tf.expand_dims(labels, -1)
        return tf.squeeze(labels, -1)

    def _find(self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> bool:
        shapes = [_ROWS] if labels.shape.rank == 1 else [_ROWS, 1]
        others = [_ROWS, 1] if labels.shape.rank == 1 else [_ROWS]
        is_per_example = self._is_per_example(function, outputs, labels, shapes)
        if is_per_example or not self._is_per_example(function, outputs, labels, others):
            return False
        if not self._may_reshape and is_per_example is False:
            _log.warning(
                "%s: the model's outputs have the shape %s and the labels %s, so %s broadcasts "
                "them to [n, n]: each output is compared with the labels of all examples, in `fit` "
                "too. Give the labels the shape of the outputs: ops.reshape(labels, "
                "ops.shape(outputs)).",
                self._where,
                "[n, 1]" if outputs.shape.rank == _PAIR else "[n]",
                "[n, 1]" if labels.shape.rank == _PAIR else "[n]",
                self._what,
            )
        return self._may_reshape

    def _is_per_example(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any, shape: list[int]
    ) -> bool | None:
        """Return whether a function makes no tensor of all pairs of examples; None if it raises."""

        def traced(outputs: Any, labels: Any) -> Any:
            return unwrap(function(outputs, as_numpy(labels) if self._labels_as_numpy else labels))

        rows = [_ROWS, 1] if outputs.shape.rank == _PAIR else [_ROWS]
        specs = tf.TensorSpec(rows, outputs.dtype), tf.TensorSpec(shape, labels.dtype)
        try:
            with tf.init_scope():
                graph = tf.function(traced).get_concrete_function(*specs).graph
        except Exception:  # noqa: BLE001 - the step raises it again
            return None
        made = [output.shape for op in graph.get_operations() for output in op.outputs]
        return not any(
            shape.rank is not None and shape.as_list().count(_ROWS) >= _PAIR for shape in made
        )


def _differ_by_an_axis(outputs: Any, labels: Any) -> bool:
    """Return whether these are tensors of one number per example, one [n] and one [n, 1]."""
    if not (tf.is_tensor(outputs) and tf.is_tensor(labels)):
        return False
    ranks = (outputs.shape.rank, labels.shape.rank)
    if ranks == (_PAIR, 1):
        return bool(outputs.shape[1] == 1)
    return ranks == (1, _PAIR) and bool(labels.shape[1] == 1)
