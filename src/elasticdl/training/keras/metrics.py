"""Metrics as states that add up over batches and workers.

Keras keeps a metric's state in variables. For nearly every metric these are sums, so a batch's
share is what the variables hold after `reset_state` and one `update_state`; shares are added
and written back into the variables to read the result. Plain scalars (first-generation
`eval_metrics_fn`, a spec's `create_metrics`) become example-weighted means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.keras import reduction
from elasticdl.training.keras.labels import as_numpy, unwrap

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays
    from elasticdl.definition import MetricFunctions, NamedMetric
    from elasticdl.training.trainer import MetricStates


class KerasMetrics:
    """Computes the states of one mode's metrics (compiled) and reads them (not)."""

    def __init__(self, functions: MetricFunctions, *, labels_as_numpy: bool, where: str) -> None:
        self._functions = functions
        self._labels_as_numpy = labels_as_numpy
        self._where = where
        self._named = {named.name: _with_state(named) for named in functions.named}

    def states(
        self,
        loss: tf.Tensor | None,
        outputs: Any,
        labels: Arrays,
        num_examples: tf.Tensor,
        weights: tf.Tensor | None = None,
    ) -> dict[str, tuple[tf.Tensor, ...]]:
        """Return the batch's states, traced into a step.

        Args:
            loss: The batch's mean loss, or None.
            outputs: The model's outputs.
            labels: As tensors.
            num_examples: float32 scalar.
            weights: Sample weights; they are for metrics that are `weighted`, as in Keras.
        """
        states: dict[str, tuple[tf.Tensor, ...]] = {}
        if loss is not None:
            states["loss"] = (tf.cast(loss, tf.float32) * num_examples, num_examples)
        if self._functions.scalars is not None:
            theirs = as_numpy(labels) if self._labels_as_numpy else labels
            values = self._functions.scalars(outputs, theirs)
            if not isinstance(values, dict):
                raise DefinitionError(
                    f"{self._where}: the metrics function returned "
                    f"{type(values).__name__}, not a dict of name -> value."
                )
            for name, value in values.items():
                states[name] = _summed(
                    tf.cast(unwrap(value), tf.float32), reduction.mask_of(outputs), num_examples
                )
        for named in self._functions.named:
            metric = self._named[named.name]
            metric.reset_state()
            metric.update_state(
                labels,
                _select(outputs, named),
                **({"sample_weight": weights} if named.weighted else {}),
            )
            states[named.name] = tuple(tf.identity(v.value) for v in metric.variables)
        return states

    def values(self, outputs: Any, labels: Arrays) -> dict[str, tf.Tensor]:
        """Return what metrics that are functions say of each example, traced into a step.

        Args:
            outputs: The model's outputs.
            labels: As tensors.

        Returns:
            Name -> float32, one value an example. A function that gives a batch's value, and a
            metric with a state, has none.
        """
        values: dict[str, tf.Tensor] = {}
        for named in self._functions.named:
            if isinstance(named.metric, keras.metrics.Metric):
                continue
            value = tf.cast(named.metric(labels, _select(outputs, named)), tf.float32)
            if value.shape.rank:
                values[named.name] = tf.reduce_mean(value, axis=list(range(1, value.shape.rank)))
        return values

    def direction(self, name: str) -> Literal["min", "max"] | None:
        """See `trainer.Metrics`."""
        return direction_of(self._named.get(name))

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return the value of each metric from summed states."""
        results: dict[str, float | list[float]] = {}
        for name, arrays in states.items():
            metric = self._named.get(name)
            if metric is None:
                total, count = arrays
                results[name] = float(total) / float(count) if count else float("nan")
                continue
            for variable, array in zip(metric.variables, arrays, strict=True):
                variable.assign(array)
            value = np.asarray(metric.result())
            results[name] = float(value) if value.ndim == 0 else value.tolist()
        return results


def _summed(
    values: tf.Tensor, mask: Any | None, num_examples: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a sum and what it is divided by: a function's values, by the mask as in Keras."""
    if mask is not None and values.shape.rank and values.shape.rank == mask.shape.rank:
        counted = tf.cast(mask, tf.float32)
        return tf.reduce_sum(values * counted), tf.reduce_sum(counted)
    return tf.reduce_mean(values) * num_examples, num_examples


def direction_of(metric: Any) -> Literal["min", "max"] | None:
    """Return which values of a Keras metric are better; None if it does not say."""
    # There is no public name; Keras' own callbacks look here.
    direction = getattr(metric, "_direction", None)
    return None if direction is None else "max" if direction == "up" else "min"


def _with_state(named: NamedMetric) -> keras.metrics.Metric:
    if isinstance(named.metric, keras.metrics.Metric):
        return named.metric
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
