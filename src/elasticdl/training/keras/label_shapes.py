"""Labels of one number per example in the shape that a Keras loss or metric function needs.

For losses, `fit` reshapes such labels to the shape of the outputs. So does this module, unless the
function is right with the given shape, because it reshapes labels or outputs by itself. For metrics
`fit` does not. Their labels are reshaped if ElasticDL chose the shape, because the model file has
no input function; otherwise there is a warning.

Callers: `loss.py`, `metrics.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from elasticdl.training.keras.labels import as_numpy, unwrap
from elasticdl.training.label_shapes import differ_by_an_axis, needs_other_shape

if TYPE_CHECKING:
    from collections.abc import Callable

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
        if not _differ(outputs, labels):
            return labels
        if self._reshapes is None:
            self._reshapes = needs_other_shape(
                lambda reshaped: self._makes_no_pairs(function, outputs, labels, reshaped),
                outputs.shape.rank,
                where=self._where,
                what=self._what,
                may_reshape=self._may_reshape,
            )
        return _with_other_rank(labels) if self._reshapes else labels

    def _makes_no_pairs(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any, reshaped: bool
    ) -> bool | None:
        """Return whether a function makes no tensor of all pairs of examples; None if it raises."""

        def traced(outputs: Any, labels: Any) -> Any:
            given = _with_other_rank(labels) if reshaped else labels
            return unwrap(function(outputs, as_numpy(given) if self._labels_as_numpy else given))

        specs = [
            tf.TensorSpec([_ROWS, *tensor.shape[1:]], tensor.dtype) for tensor in (outputs, labels)
        ]
        try:
            with tf.init_scope():
                graph = tf.function(traced).get_concrete_function(*specs).graph
        except Exception:  # noqa: BLE001 - the step raises it again
            return None
        made = [output.shape for op in graph.get_operations() for output in op.outputs]
        return not any(
            shape.rank is not None and shape.as_list().count(_ROWS) >= _PAIR for shape in made
        )


def _differ(outputs: Any, labels: Any) -> bool:
    if not (tf.is_tensor(outputs) and tf.is_tensor(labels)):
        return False
    if outputs.shape.rank is None or labels.shape.rank is None:
        return False
    return differ_by_an_axis(outputs.shape.as_list(), labels.shape.as_list())


def _with_other_rank(labels: Any) -> Any:
    """Return labels [n] as [n, 1], and labels [n, 1] as [n]."""
    return tf.expand_dims(labels, -1) if labels.shape.rank == 1 else tf.squeeze(labels, -1)
