"""Computes Keras metrics from states that are summed over batches and workers.

Keras keeps a metric's state in variables; `metric_states.py` computes the share that a batch adds.
The shares are summed, and the sum is written into the variables to read the result. Metrics that
are attributes of layers or the model are updated while the model is called, and reported under the
names Keras gives them. Functions that return plain scalars (`eval_metrics_fn` of model files with
`input_fn(records)`, a spec's `create_metrics`) become example-weighted means.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError, reason
from elasticdl.training.keras import reduction
from elasticdl.training.keras.label_shapes import KerasLabelShape
from elasticdl.training.keras.labels import as_numpy, unwrap
from elasticdl.training.keras.metric_states import MetricVariables, is_foreign
from elasticdl.training.means import mean_of
from elasticdl.training.metric_names import check_names, in_order

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays
    from elasticdl.definition import MetricFunctions, NamedMetric
    from elasticdl.training.trainer import MetricStates


class KerasMetrics:
    """Computes the metrics of training or of evaluation.

    A compiled step computes their states, which are added up; `results` turns sums into values.

    Args:
        functions: The metrics that the model file defines.
        labels_as_numpy: Whether the user's functions treat labels as numpy arrays.
        where: The user's file, for errors.
        tracked: Metrics that the model updates itself.
        is_default: Whether ElasticDL chose the shape of the labels; see `label_shapes.py`.

    Attributes:
        variables: The states of the metrics that have variables.

    Raises:
        DefinitionError: Two metrics have the same name, one has the name of the loss, or one is
            not a Keras 3 metric.
    """

    def __init__(
        self,
        functions: MetricFunctions,
        *,
        labels_as_numpy: bool,
        where: str,
        tracked: Sequence[keras.metrics.Metric] = (),
        is_default: bool = False,
    ) -> None:
        self._functions = functions
        self._labels_as_numpy = labels_as_numpy
        self._where = functions.where or where
        self._label_shapes = {
            named.name: KerasLabelShape(
                self._where,
                f"the metric {named.name!r}",
                labels_as_numpy=False,
                is_default=is_default,
            )
            for named in functions.named
            if not isinstance(named.metric, keras.metrics.Metric)
        }
        self._shape_of_all = KerasLabelShape(
            self._where, "a metric", labels_as_numpy=labels_as_numpy, is_default=is_default
        )
        check_names([named.name for named in functions.named], self._where)
        check_names([*(n.name for n in functions.named), *(m.name for m in tracked)], where)
        members = {named.name: _with_state(named, self._where) for named in functions.named}
        members |= {metric.name: metric for metric in tracked}
        self.variables = MetricVariables(members, self._where)

    @property
    def ordered(self) -> frozenset[str]:
        """Names of metrics whose states are carried from batch to batch, not summed."""
        return self.variables.ordered

    @property
    def needs_outputs(self) -> bool:
        """Whether the metrics must be tested on an example batch before the first step.

        This shows if the states of all metrics can be summed, and which names a function that
        returns plain scalars gives to them.
        """
        return self._functions.scalars is not None or bool(self.variables.unproved)

    def states(
        self,
        loss: tf.Tensor | None,
        outputs: Any,
        labels: Arrays,
        num_examples: tf.Tensor,
        weights: tf.Tensor | None = None,
    ) -> dict[str, tuple[tf.Tensor, ...]]:
        """Return the batch's states: name of the metric -> tensors that add up over batches.

        Runs within a compiled step, after `variables.begin`.

        Args:
            loss: The batch's mean loss. None: leave out the metric `loss`.
            outputs: The model's outputs.
            labels: Labels of the batch, as tensors.
            num_examples: Number of examples in the batch, a float32 scalar.
            weights: Sample weights, for metrics that are `weighted`, as in Keras.
        """
        states: dict[str, tuple[tf.Tensor, ...]] = {}
        if loss is not None:
            states["loss"] = (tf.cast(loss, tf.float32) * num_examples, num_examples)
        if self._functions.scalars is not None:
            shaped = self._shape_of_all.fitted(self._functions.scalars, outputs, labels)
            theirs = as_numpy(shaped) if self._labels_as_numpy else shaped
            values = self._functions.scalars(outputs, theirs)
            if not isinstance(values, dict):
                raise DefinitionError(
                    f"{self._where}: the metrics function returned "
                    f"{type(values).__name__}, not a dict of name -> value."
                )
            check_names([*values, *self.variables.members], self._where)
            for name, value in values.items():
                states[name] = _summed(
                    tf.cast(unwrap(value), tf.float32), reduction.mask_of(outputs), num_examples
                )
        for named in self._functions.named:
            metric = self.variables.members[named.name]
            selected = _select(outputs, named)
            try:
                metric.update_state(
                    self._shaped(named, selected, labels),
                    selected,
                    **({"sample_weight": weights} if named.weighted else {}),
                )
            except (TypeError, ValueError) as error:
                if not isinstance(labels, dict) and not isinstance(selected, dict):
                    raise
                raise self._of_several(named, labels, selected, error) from error
        return {**states, **self.variables.shares()}

    def _shaped(self, named: NamedMetric, outputs: Any, labels: Any) -> Any:
        """Return labels in the shape that a metric function needs; unchanged for a Keras metric."""
        shape = self._label_shapes.get(named.name)
        if shape is None:
            return labels
        return shape.fitted(lambda outputs, labels: named.metric(labels, outputs), outputs, labels)

    def _of_several(
        self, named: NamedMetric, labels: Any, outputs: Any, error: Exception
    ) -> DefinitionError:
        """Return the error for a metric that fails on dicts of labels or outputs."""
        given = [
            f"{what} as a dict ({', '.join(value)})"
            for what, value in (("labels", labels), ("outputs", outputs))
            if isinstance(value, dict)
        ]
        first = next(key for value in (labels, outputs) if isinstance(value, dict) for key in value)
        return DefinitionError(
            f"{self._where}: the metric {named.name!r} gets {' and '.join(given)} and raised "
            f"{type(error).__name__}: {reason(error).rstrip('.')}. Compute it from one of them, "
            f"such as def eval_metrics_fn(labels, outputs): return {{{named.name!r}: "
            f"keras.metrics.mean_squared_error(labels[{first!r}], outputs[{first!r}])}}, or select "
            "them in update_state() of a metric class of your own."
        )

    def values(self, outputs: Any, labels: Arrays) -> dict[str, tf.Tensor]:
        """Return per-example values of metrics that are functions; runs within a compiled step.

        Args:
            outputs: The model's outputs.
            labels: Labels of the batch, as tensors.

        Returns:
            Name -> float32, one value per example. A function that returns one value per batch, and
            a metric with a state, are left out.
        """
        values: dict[str, tf.Tensor] = {}
        for named in self._functions.named:
            if isinstance(named.metric, keras.metrics.Metric):
                continue
            selected = _select(outputs, named)
            shaped = self._shaped(named, selected, labels)
            value = tf.cast(named.metric(shaped, selected), tf.float32)
            if value.shape.rank:
                values[named.name] = tf.reduce_mean(value, axis=list(range(1, value.shape.rank)))
        return values

    def direction(self, name: str) -> Literal["min", "max"] | None:
        """Return "min" or "max": which values of a metric are better; None if unknown."""
        of_name = {named.name: named.direction for named in self._functions.named}
        return direction_of(self.variables.members.get(name)) or of_name.get(name)

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return the value of each metric.

        Args:
            states: Name of the metric -> its states, summed over batches and workers.
        """
        results: dict[str, float | list[float]] = {}
        for name in in_order(states, list(self.variables.members)):
            arrays = states[name]
            if name not in self.variables.members:
                total, count = arrays
                results[name] = mean_of(total, count)
                continue
            found = in_numbers(name, self.variables.result(name, arrays))
            if found.keys() != {name}:
                check_names([*found, *(states.keys() - {"loss", name})], self._where)
            results |= found
        return results


def _summed(
    values: tf.Tensor, mask: Any | None, num_examples: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a numerator and a divisor whose sums over batches give a metric's mean.

    Args:
        values: What the metric function returned.
        mask: Mask of the outputs; applied, as in Keras, if it has as many axes as `values`.
        num_examples: Number of examples in the batch.
    """
    if mask is not None and values.shape.rank and values.shape.rank == mask.shape.rank:
        counted = tf.cast(mask, tf.float32)
        return tf.reduce_sum(values * counted), tf.reduce_sum(counted)
    return tf.reduce_mean(values) * num_examples, num_examples


def direction_of(metric: Any) -> Literal["min", "max"] | None:
    """Return "min" or "max": which values of a Keras metric are better; None if unknown."""
    # Keras has no public name for it; its own callbacks read this attribute.
    direction = getattr(metric, "_direction", None)
    return None if direction is None else "max" if direction == "up" else "min"


def in_numbers(name: str, result: Any) -> dict[str, float | list[float]]:
    """Convert a metric's result to name -> number, or list of numbers if it is an array.

    Args:
        name: Name of the metric.
        result: What its `result()` returned; a dict yields one entry for each of its values.
    """
    named = result if isinstance(result, dict) else {name: result}
    arrays = {each: np.asarray(value) for each, value in named.items()}
    return {
        each: float(array) if array.ndim == 0 else array.tolist() for each, array in arrays.items()
    }


def tracked_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the metrics that the model updates when called, without those Keras adds itself.

    Keras adds the mean loss and the metrics passed to `compile`.
    """
    # Keras has no public names for its own metrics among them.
    own = [getattr(model, "_loss_tracker", None), getattr(model, "_compile_metrics", None)]
    own += getattr(getattr(model, "_compile_loss", None), "metrics", [])
    return [metric for metric in model.metrics if not any(metric is one for one in own)]


def _with_state(named: NamedMetric, where: str) -> keras.metrics.Metric:
    if isinstance(named.metric, keras.metrics.Metric):
        arguments = list(inspect.signature(named.metric.update_state).parameters)
        if arguments[1:2] == ["sample_weight"]:
            # Called with labels and predictions, it would take the predictions as weights.
            raise DefinitionError(
                f"{where}: the metric {named.name!r} is a {type(named.metric).__name__}, whose "
                f"update_state({', '.join(arguments)}) takes values, not labels and predictions. "
                "Use a metric of both, such as keras.metrics.MeanAbsoluteError(), or a function "
                "(labels, predictions) that returns one value per example: their mean is reported."
            )
        return named.metric
    if is_foreign(named.metric):
        raise DefinitionError(
            f"{where}: the metric {named.name!r} is a "
            f"{type(named.metric).__module__}.{type(named.metric).__name__}; expected a metric of "
            "Keras 3 (keras.metrics), or a function (labels, predictions) with one value per "
            "example."
        )
    return keras.metrics.MeanMetricWrapper(named.metric, name=named.name)


def _select(outputs: Any, named: NamedMetric) -> Any:
    if named.output is None:
        return outputs
    if not isinstance(outputs, dict) or named.output not in outputs:
        have = sorted(outputs) if isinstance(outputs, dict) else "a single output"
        raise DefinitionError(
            f"The metric {named.name!r} is for the model output {named.output!r}; the model "
            f"has {have}."
        )
    return outputs[named.output]
