"""Reshapes labels of one number per example as a Keras loss or metric function needs them.

For losses, `fit` reshapes such labels to the rank of the outputs, if these are [n] or [n, 1]. So
does this module, unless the function is correct with the given shape, because it reshapes labels or
outputs itself. For other outputs, and for metrics, `fit` does not reshape. Labels are then reshaped
here only if ElasticDL chose their shape, because the model file has no input function; otherwise a
warning is logged.

Labels [n, 1] that ElasticDL chose broadcast with outputs [n, 3], too: each label is compared with
all three. A quantile loss does so on purpose, so there is only a warning.

Callers: `loss.py`, `metrics.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from elasticdl.training.keras.labels import as_numpy, unwrap
from elasticdl.training.label_shapes import needs_other_shape, warn_of_several_outputs

if TYPE_CHECKING:
    from collections.abc import Callable

# A length that occurs nowhere else. Shapes are compared because equal labels hide the mistake in
# the values.
_ROWS = 8191
_PAIR = 2
# Operations that compare outputs with labels.
_DIFFERENCES = {"Sub", "SquaredDifference"}


class KerasLabelShape:
    """Reshapes labels for one loss or metric function, or warns that their shape does not fit.

    Args:
        where: `file:line` of the function, for the warning.
        what: What the function is, such as "the loss".
        labels_as_numpy: Whether it treats labels as numpy arrays.
        is_default: Whether ElasticDL chose the shape of the labels, so that they may be reshaped;
            otherwise there is only a warning.
        as_in_fit: Whether `fit` reshapes them for outputs [n] or [n, 1].
    """

    def __init__(
        self,
        where: str,
        what: str,
        *,
        labels_as_numpy: bool,
        is_default: bool,
        as_in_fit: bool = False,
    ) -> None:
        self._where, self._what = where, what
        self._labels_as_numpy = labels_as_numpy
        self._is_default, self._as_in_fit = is_default, as_in_fit
        # None until the first labels whose shape differs from that of the outputs.
        self._reshapes: bool | None = None
        self._is_checked_for_spread = False

    def fitted(self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> Any:
        """Return labels in the shape that a function needs for these outputs.

        Runs within a compiled step.

        Args:
            function: Function (outputs, labels) -> loss or metric.
            outputs: The model's outputs, as nested tensors.
            labels: Labels of the batch, as tensors.
        """
        if not _is_number_per_example(labels):
            return labels
        is_like_labels = _is_number_per_example(outputs)
        if is_like_labels and outputs.shape.rank == labels.shape.rank:
            return labels
        if self._reshapes is None:
            self._reshapes = needs_other_shape(
                lambda reshaped: self._is_per_example(function, outputs, labels, reshaped),
                labels.shape.rank,
                where=self._where,
                what=self._what,
                may_reshape=self._is_default or (self._as_in_fit and is_like_labels),
            )
        fitted = _with_other_rank(labels) if self._reshapes else labels
        self.warn_if_spread(function, outputs, fitted)
        return fitted

    def warn_if_spread(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any
    ) -> None:
        """Warn once if labels in ElasticDL's default shape are compared with several outputs each.

        Args:
            function: Function (outputs, labels) -> loss or metric.
            outputs: The model's outputs, as nested tensors.
            labels: Labels of the batch, as tensors.
        """
        if self._is_checked_for_spread or not self._is_default:
            return
        self._is_checked_for_spread = True
        if not (tf.is_tensor(outputs) and outputs.shape.rank == _PAIR):
            return
        width = outputs.shape[1]
        if width is None or width == 1:
            return
        if not _is_number_per_example(labels) or labels.shape.rank != _PAIR:
            return
        try:
            graph, given = self._traced(function, outputs, labels)
        except Exception:  # noqa: BLE001 - the step raises it again
            return
        if _spreads(graph, given, width):
            warn_of_several_outputs(self._where, self._what, width)

    def _is_per_example(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any, reshaped: bool
    ) -> bool | None:
        """Return whether a function matches each example's outputs with its own labels only.

        Labels [n] against outputs [n, 1] broadcast to [n, n], a silent error: the result is False.
        But it is True if the function also compares labels with each other, because pairs are
        intended then. It is None if the function raises.

        Args:
            function: Function (outputs, labels) -> loss or metric.
            outputs: The model's outputs, as nested tensors.
            labels: Labels [n] or [n, 1].
            reshaped: Whether to call the function with the labels in the other of these shapes.
        """

        def of_shape(outputs: Any, labels: Any) -> Any:
            return function(outputs, _with_other_rank(labels) if reshaped else labels)

        try:
            return not _pairs_by_broadcasting(*self._traced(of_shape, outputs, labels))
        except Exception:  # noqa: BLE001 - the step raises it again
            return None

    def _traced(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any
    ) -> tuple[Any, Any]:
        """Trace a function for `_ROWS` examples; return its graph and its input for the labels."""

        def traced(outputs: Any, labels: Any) -> Any:
            return unwrap(function(outputs, as_numpy(labels) if self._labels_as_numpy else labels))

        def of_rows(tensor: Any) -> Any:
            rank = tensor.shape.rank
            has_rows = rank and tensor.shape[0] == labels.shape[0]
            shape = [_ROWS, *tensor.shape[1:]] if has_rows else tensor.shape
            return tf.TensorSpec(shape, tensor.dtype)

        specs = tf.nest.map_structure(of_rows, (outputs, labels))
        with tf.init_scope():
            graph = tf.function(traced).get_concrete_function(*specs).graph
        return graph, graph.inputs[len(tf.nest.flatten(specs)) - 1]


def _pairs_by_broadcasting(graph: Any, labels: Any) -> bool:
    """Return whether a traced function combines all pairs of examples, apparently by mistake.

    It is no mistake if an operation pairs labels with labels, as a ranking loss does.

    Args:
        graph: Graph of the function, traced for `_ROWS` examples.
        labels: Its input for the labels.
    """
    has_pairs, of_labels = False, {labels.ref()}
    for operation in graph.get_operations():
        given = [each for each in operation.inputs if each.op.type != "Const"]
        is_of_labels = bool(given) and all(each.ref() in of_labels for each in given)
        for made in operation.outputs:
            if is_of_labels:
                of_labels.add(made.ref())
            if _num_row_axes(made) >= _PAIR:
                has_pairs = True
                if is_of_labels and sum(map(bool, map(_num_row_axes, given))) >= _PAIR:
                    return False
    return has_pairs


def _spreads(graph: Any, labels: Any, width: int) -> bool:
    """Return whether a traced function subtracts labels [n, 1] from several outputs, or reverse.

    Args:
        graph: Graph of the function.
        labels: Its input for the labels.
        width: Number of outputs of an example.
    """
    of_labels = {labels.ref()}
    for operation in graph.get_operations():
        given = [each for each in operation.inputs if each.op.type != "Const"]
        are_of_labels = [each.ref() in of_labels for each in given]
        if given and all(are_of_labels):
            # A mask, such as `labels > 0`, is for all outputs.
            of_labels |= {made.ref() for made in operation.outputs if made.dtype.is_floating}
        elif operation.type in _DIFFERENCES and any(are_of_labels):
            shapes = [each.shape.as_list() for each in given if each.shape.rank == _PAIR]
            if [_ROWS, 1] in shapes and [_ROWS, width] in shapes:
                return True
    return False


def _num_row_axes(tensor: Any) -> int:
    """Return the number of a tensor's axes along which it has one entry per example.

    An axis is recognised by its size, `_ROWS`: functions are traced for that number of examples.
    """
    return 0 if tensor.shape.rank is None else int(tensor.shape.as_list().count(_ROWS))


def _is_number_per_example(values: Any) -> bool:
    """Return whether the values are one tensor of shape [n] or [n, 1]."""
    if not tf.is_tensor(values) or not values.shape.rank:
        return False
    return values.shape.as_list()[1:] in ([], [1])


def _with_other_rank(labels: Any) -> Any:
    """Return labels [n] as [n, 1], and labels [n, 1] as [n]."""
    return tf.expand_dims(labels, -1) if labels.shape.rank == 1 else tf.squeeze(labels, -1)
