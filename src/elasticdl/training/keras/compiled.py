"""Computes the loss and the metrics that a model was compiled with.

Labels are pairs (labels, sample weights) here. The loss and metrics are computed through the
public methods of the model, so models that override these methods work as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.keras import overrides
from elasticdl.training.keras.metric_states import MetricVariables
from elasticdl.training.keras.metrics import direction_of, in_numbers, tracked_metrics
from elasticdl.training.means import mean_of
from elasticdl.training.metric_names import check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elasticdl.data.batch import Arrays
    from elasticdl.definition import Origin
    from elasticdl.training.trainer import MetricStates

# Methods that return the metrics' results; a model may override them.
_RESULTS = ("compute_metrics", "get_metrics_result")


def check(model: keras.Model, origin: Origin) -> None:
    """Make sure that a model was compiled with an optimizer.

    Raises:
        DefinitionError: The model was not compiled, or has no optimizer.
    """
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise DefinitionError(
            f"{origin}: the model {model.name!r} is not compiled. Call model.compile("
            "optimizer=..., loss=..., metrics=[...]) before it is returned."
        )


def loss(
    model: keras.Model, features: Arrays, outputs: Any, labels: Arrays, *, training: bool = True
) -> Any:
    """Compute the loss that a model was compiled with, including losses added by layers.

    The metrics that track the loss of each output are reset first, so that they then show the
    losses of this batch.

    Args:
        model: A compiled model.
        features: Features of the batch.
        outputs: The model's outputs for them.
        labels: A pair (labels, sample weights).
        training: Whether the loss is computed for a training step, not for an evaluation.
    """
    targets, weights = labels
    for tracker in _trackers(model):
        tracker.reset_state()
    return own_loss(model, features, targets, outputs, weights, training=training)


def own_loss(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool
) -> Any:
    """Call a model's `compute_loss`, also one that does not accept `training`."""
    # Models written for early versions of Keras 3 do not accept the last argument.
    knows_training = "training" in inspect.signature(model.compute_loss).parameters
    more = {"training": training} if knows_training else {}
    return model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **more)


def give_loss(model: keras.Model, loss: Callable[[Any, Any, Any], Any]) -> None:
    """Set the loss that a model's own `compute_loss` uses, as if `compile` had been called with it.

    For a model that overrides `compute_loss`, and whose file defines the loss separately.

    Args:
        model: A model compiled with an optimizer.
        loss: Function (outputs, labels, sample weights) -> loss. It is called once for all outputs
            of the model.
    """
    given = _GivenLoss(loss)
    model.loss = given
    # Keras has no public name for it, and `compile` would call the loss for each of several
    # outputs.
    model._compile_loss = given  # noqa: SLF001


class _GivenLoss(keras.losses.Loss):
    """A model file's loss function, in the form in which a compiled Keras model stores its loss."""

    def __init__(self, loss: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__(name="loss")
        self._loss = loss
        # Keras reads these attributes of a compiled loss.
        self.metrics: list[Any] = []
        self.variables: list[Any] = []

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return self._loss(y_pred, y_true, sample_weight)


class CompiledMetrics:
    """Computes the metrics that a model was compiled with; has the interface of `KerasMetrics`.

    Args:
        model: The model.
        features: Features of an example batch.
        outputs: The model's outputs for them.
        labels: Labels of that batch.
        where: The user's file, for errors.

    Attributes:
        variables: The variables of all metrics.

    Raises:
        DefinitionError: Two metrics have the same name, or one has the name of the loss; or the
            model's own `compute_metrics` or `get_metrics_result` returns other values.
    """

    def __init__(
        self, model: keras.Model, features: Arrays, outputs: Any, labels: Arrays, *, where: str
    ) -> None:
        self._model = model
        # The first call creates their variables, which must not happen within a compiled function.
        self._update(outputs, labels)
        loss(model, features, outputs, labels)
        # These are means over examples here, over batches in Keras: the loss, and one mean for each
        # of several outputs.
        self._trackers = _trackers(model)
        # Keras has no public name for it.
        by_compile = getattr(model, "_compile_metrics", None)
        self._metrics = [by_compile] if by_compile is not None and by_compile.metrics else []
        self._metrics += tracked_metrics(model)
        self._check_results(outputs, labels, where)
        found = [in_numbers(metric.name, metric.result()) for metric in self._metrics]
        taken = ("loss", *(tracker.name for tracker in self._trackers))
        check_names([name for some in found for name in some], where, taken=taken)
        self.variables = MetricVariables(_members(self._metrics, taken), where)

    @property
    def ordered(self) -> frozenset[str]:
        """Names of metrics whose states are carried from batch to batch, not summed."""
        return self.variables.ordered

    @property
    def needs_outputs(self) -> bool:
        """Whether the metrics must be tested on an example batch before the first step.

        This shows if the states of all metrics can be summed.
        """
        return bool(self.variables.unproved)

    def _update(self, outputs: Any, labels: Arrays) -> Any:
        targets, weights = labels
        return self._model.compute_metrics(x=None, y=targets, y_pred=outputs, sample_weight=weights)

    def _check_results(self, outputs: Any, labels: Arrays, where: str) -> None:
        """Check that a model's own methods return the results of its metrics, as computed here."""
        model = self._model
        named = {name: overrides.own(model, name) for name in _RESULTS}
        methods = {name: method for name, method in named.items() if method is not None}
        tracker = getattr(model, "_loss_tracker", None)
        if not methods:
            return
        if tracker is not None:
            tracker.update_state(1.0)
        logs = self._update(outputs, labels)
        reported = model.get_metrics_result()
        # As `fit`, which reports the former only if both have the same names.
        reported = reported if reported.keys() == logs.keys() else logs
        expected = keras.Model.get_metrics_result(model)
        if tracker is not None:
            tracker.reset_state()
        for name, value in reported.items():
            # A metric of per-class values is a list.
            is_number = not isinstance(value, Mapping) and value is not None
            is_metric = is_number and name in expected
            if not is_metric or not np.allclose(value, expected[name], equal_nan=True):
                shown = f"{float(np.mean(value)):g}" if is_number else value
                method = next(iter(methods))
                raise DefinitionError(
                    f"{overrides.place(methods[method]) or where}: {method}() of "
                    f"{type(model).__name__} returns {name}={shown} for an "
                    f"example batch, which is not the result of a metric of the model "
                    f"({', '.join(expected)}). ElasticDL reports the results of metrics, summed "
                    "over batches and workers: compute this value in a metric (keras.metrics."
                    "Metric), and pass it to compile(metrics=[...])."
                )

    def states(
        self,
        batch_loss: tf.Tensor | None,
        outputs: Any,
        labels: Arrays,
        num_examples: tf.Tensor,
        weights: tf.Tensor | None = None,
    ) -> dict[str, tuple[tf.Tensor, ...]]:
        """Return the batch's metric states; see `KerasMetrics.states`.

        `weights` is ignored: the labels of a compiled model include the sample weights.
        """
        # The sample weights of a compiled model come with its labels.
        del weights
        states: dict[str, tuple[tf.Tensor, ...]] = {}
        if batch_loss is not None:
            states["loss"] = (tf.cast(batch_loss, tf.float32) * num_examples, num_examples)
            for tracker in self._trackers:
                of_output = tf.cast(tracker.result(), tf.float32)
                states[tracker.name] = (of_output * num_examples, num_examples)
        if self.variables.members:
            self._update(outputs, labels)
        return {**states, **self.variables.shares()}

    def values(self, outputs: Any, labels: Arrays) -> dict[str, tf.Tensor]:
        """Return an empty dict: metrics of a compiled model have no per-example values."""
        del outputs, labels
        return {}

    def direction(self, name: str) -> Literal["min", "max"] | None:
        """Return "min" or "max": which values of a metric are better; None if unknown."""
        flat = [one for each in self._metrics for one in getattr(each, "metrics", [each])]
        return next((direction_of(each) for each in flat if each.name == name), None)

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return the value of each metric.

        Args:
            states: Name of the metric -> its states, summed over batches and workers.
        """
        results: dict[str, float | list[float]] = {}
        for name in ("loss", *(tracker.name for tracker in self._trackers)):
            if name in states:
                total, count = states[name]
                results[name] = mean_of(total, count)
        if self.variables.assign(states):
            for metric in self._metrics:
                results |= in_numbers(metric.name, metric.result())
        return results


def _members(metrics: list[Any], taken: Collection[str]) -> dict[str, Any]:
    """Return the metrics by name; names are made unique.

    Args:
        metrics: Metrics of a model; the compound metric that `compile` creates is split.
        taken: Names that are not available. Equal names get a suffix, `#2`.
    """
    members: dict[str, Any] = {}
    for metric in metrics:
        parts = metric.metrics if hasattr(metric, "output_names") else [metric]
        for part in parts:
            name, number = part.name, 1
            while name in members or name in taken:
                # Metrics of different outputs may have equal names.
                number += 1
                name = f"{part.name}#{number}"
            members[name] = part
    return members


def _trackers(model: keras.Model) -> list[Any]:
    """Return the metrics that track the loss of each output; none if there is one output."""
    # Keras has no public name for it.
    compiled_loss = getattr(model, "_compile_loss", None)
    return [] if compiled_loss is None else list(compiled_loss.metrics)
