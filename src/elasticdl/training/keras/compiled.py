"""Models that were compiled: the loss and the metrics they were given by `compile`.

Labels are pairs (labels, sample weights) here. What `compile` was given is asked by the public
methods of the model, so a model that overrides them is served as well.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.keras.metrics import direction_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.data.batch import Arrays
    from elasticdl.definition import Origin
    from elasticdl.training.trainer import MetricStates

_METRICS = "compiled metrics"


def check(model: keras.Model, origin: Origin) -> None:
    """Make sure that a model can be trained as it was compiled.

    Raises:
        DefinitionError: It was not compiled.
    """
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise DefinitionError(
            f"{origin}: the model {model.name!r} is not compiled. Call model.compile("
            "optimizer=..., loss=..., metrics=[...]) before it is returned."
        )


def loss(
    model: keras.Model, features: Arrays, outputs: Any, labels: Arrays, *, training: bool = True
) -> Any:
    """Return the batch's loss, what layers have added included."""
    targets, weights = labels
    for tracker in _trackers(model):
        tracker.reset_state()
    return own_loss(model, features, targets, outputs, weights, training=training)


def own_loss(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool
) -> Any:
    """Return what a model's `compute_loss` says of a batch; see `keras.Model.compute_loss`."""
    # Models written for the first versions of Keras 3 do not know the last argument.
    knows_training = "training" in inspect.signature(model.compute_loss).parameters
    more = {"training": training} if knows_training else {}
    return model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **more)


def give_loss(model: keras.Model, loss: Callable[[Any, Any, Any], Any]) -> None:
    """Let a model's own `compute_loss` find a loss, as if the model had been compiled with it.

    Args:
        model: Compiled with an optimizer.
        loss: Takes outputs, labels and sample weights; all of them, where there are several.
    """
    given = _GivenLoss(loss)
    model.loss = given
    # There is no public name, and `compile` would call it for each of several outputs.
    model._compile_loss = given  # noqa: SLF001


class _GivenLoss(keras.losses.Loss):
    """A definition's loss in the place of one that was compiled in."""

    def __init__(self, loss: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__(name="loss")
        self._loss = loss
        # As Keras asks what it is compiled with.
        self.metrics: list[Any] = []
        self.variables: list[Any] = []

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return self._loss(y_pred, y_true, sample_weight)


class CompiledMetrics:
    """Computes the states of a compiled model's metrics and reads them; see `KerasMetrics`.

    Args:
        model: The model.
        features: Of an example batch.
        outputs: What the model says of it.
        labels: Of that batch.
    """

    def __init__(self, model: keras.Model, features: Arrays, outputs: Any, labels: Arrays) -> None:
        self._model = model
        # Their variables are made at the first call, which must not be within a compiled one.
        self._update(outputs, labels)
        loss(model, features, outputs, labels)
        # Means over examples here, over batches in Keras: the loss, and one for each of several
        # outputs.
        self._trackers = _trackers(model)
        by_keras = [*model.metrics[:1], *self._trackers]
        self._metrics = [m for m in model.metrics if not any(m is other for other in by_keras)]

    def _update(self, outputs: Any, labels: Arrays) -> None:
        targets, weights = labels
        self._model.compute_metrics(x=None, y=targets, y_pred=outputs, sample_weight=weights)

    def states(
        self,
        batch_loss: tf.Tensor | None,
        outputs: Any,
        labels: Arrays,
        num_examples: tf.Tensor,
        weights: tf.Tensor | None = None,
    ) -> dict[str, tuple[tf.Tensor, ...]]:
        """Return the batch's states, traced into a step; see `KerasMetrics.states`."""
        # Those of a compiled model are beside its labels.
        del weights
        states: dict[str, tuple[tf.Tensor, ...]] = {}
        if batch_loss is not None:
            states["loss"] = (tf.cast(batch_loss, tf.float32) * num_examples, num_examples)
            for tracker in self._trackers:
                of_output = tf.cast(tracker.result(), tf.float32)
                states[tracker.name] = (of_output * num_examples, num_examples)
        variables = self._variables()
        if variables:
            for metric in self._metrics:
                metric.reset_state()
            self._update(outputs, labels)
            states[_METRICS] = tuple(tf.identity(variable.value) for variable in variables)
        return states

    def values(self, outputs: Any, labels: Arrays) -> dict[str, tf.Tensor]:
        """Return nothing: the metrics of a compiled model have states; see `KerasMetrics`."""
        del outputs, labels
        return {}

    def direction(self, name: str) -> Literal["min", "max"] | None:
        """See `trainer.Metrics`."""
        flat = [one for each in self._metrics for one in getattr(each, "metrics", [each])]
        return next((direction_of(each) for each in flat if each.name == name), None)

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return the value of each metric from summed states."""
        results: dict[str, float | list[float]] = {}
        for name in ("loss", *(tracker.name for tracker in self._trackers)):
            if name in states:
                total, count = states[name]
                results[name] = float(total) / float(count) if count else float("nan")
        if _METRICS in states:
            for variable, array in zip(self._variables(), states[_METRICS], strict=True):
                variable.assign(array)
            for metric in self._metrics:
                value = metric.result()
                named = value if isinstance(value, dict) else {metric.name: value}
                for name, one in named.items():
                    array = np.asarray(one)
                    results[name] = float(array) if array.ndim == 0 else array.tolist()
        return results

    def _variables(self) -> list[Any]:
        return [variable for metric in self._metrics for variable in metric.variables]


def _trackers(model: keras.Model) -> list[Any]:
    """Return what holds the batch's loss of each output; nothing where there is one output."""
    # There is no public name.
    compiled_loss = getattr(model, "_compile_loss", None)
    return [] if compiled_loss is None else list(compiled_loss.metrics)
