"""Tests early, on a few examples, whether the states of user metrics can be summed over batches.

The states after both parts of a batch are compared with the sum of the states after each part
(`metric_states.py`): for a mean they are equal, for a maximum they are not.

Callers: `trainer.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from elasticdl.data.batch import map_arrays
from elasticdl.errors import DataError, UserCodeError
from elasticdl.training.keras import failures
from elasticdl.training.keras.step_functions import parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.generators import Generators
    from elasticdl.training.keras.compiled import CompiledMetrics
    from elasticdl.training.keras.loss import TrainingLoss
    from elasticdl.training.keras.metrics import KerasMetrics

    Metrics: TypeAlias = KerasMetrics | CompiledMetrics

# Number of examples for testing whether a metric's states add up.
_MAX_PROBED = 16


class MetricProbe:
    """Tests on a few examples whether the states of metrics can be summed over batches.

    Args:
        definition: The definition of the model.
        forward: Function (features as tensors) -> the model's outputs; has no side effects.
        loss: The loss, which is a metric too.
        generators: The random number generators that Python code draws from.
        predict: Function (features) -> the model's outputs as arrays, to explain a failure.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        forward: Callable[[Any], Any],
        loss: TrainingLoss,
        generators: Generators,
        predict: Callable[[Arrays], Arrays],
    ) -> None:
        self._definition, self._forward, self._loss = definition, forward, loss
        self._generators, self._predict = generators, predict

    def on_example(self, example: Batch, metrics: Metrics) -> None:
        """Test the user's metrics on an example batch, before the first step.

        Does nothing if the example has no labels, or if no metric needs a test. Errors that concern
        the batch are ignored, because they are raised again for the first real batch.

        Raises:
            DefinitionError: A metric's name is reserved, or a metric has state outside its
                variables.
        """
        if example.labels is None or not metrics.needs_outputs:
            return
        # An exception here is raised again on the first batch, which can then be named.
        with contextlib.suppress(DataError, UserCodeError):
            self.on(example, metrics)

    def probe_unproved(self, batch: Batch, metrics: Metrics) -> None:
        """Test metrics for which earlier batches did not show whether their states can be summed.

        Does nothing before `require_sums`, because the states of such metrics are then carried
        from batch to batch.

        Raises:
            DataError: A label or an id is out of range.
            DefinitionError: A metric's name is reserved, or a metric has state outside its
                variables, or its states cannot be summed.
            UserCodeError: A metric raised.
        """
        if metrics.variables.unproved and not metrics.variables.ordered:
            self.on(batch, metrics)

    def on(self, batch: Batch, metrics: Metrics) -> None:
        """Test whether metric states can be summed, by updating metrics with two parts of a batch.

        Raises:
            DataError: A label or an id is out of range.
            DefinitionError: A metric's name is reserved, or a metric has state outside its
                variables.
            UserCodeError: A metric raised.
        """
        num_examples = min(batch.num_examples, _MAX_PROBED)
        middle = num_examples // 2

        def part(rows: slice) -> Callable[[], None]:
            def take(array: Any) -> tf.Tensor:
                return tf.convert_to_tensor(array[rows])

            features, labels, weights = (
                None if arrays is None else map_arrays(take, arrays) for arrays in parts(batch)
            )
            size = tf.constant(len(range(num_examples)[rows]), tf.float32)

            def update() -> None:
                outputs = self._forward(features)
                loss = None
                if self._loss.is_defined:
                    loss = self._loss(features, outputs, labels, weights, training=False)
                metrics.states(loss, outputs, labels, size, weights)

            return update

        first = part(slice(0, middle or 1))
        naming = failures.naming("the metrics", batch, self._definition, self._predict)
        with naming, self._generators.used():
            if metrics.variables.unproved:
                metrics.variables.probe(first, part(slice(middle, num_examples)))
            else:
                first()
