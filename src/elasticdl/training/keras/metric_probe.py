"""What metrics of the user's own do with batches, found out before it matters.

A metric's states after two parts of a batch are compared with their sum (`states.py`): those of a
mean add up, those of a maximum do not.

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
    from elasticdl.training.keras.loss import Loss
    from elasticdl.training.keras.metrics import KerasMetrics

    Metrics: TypeAlias = KerasMetrics | CompiledMetrics

# Examples that tell whether a metric's states add up.
_MAX_PROBED = 16


class MetricProbe:
    """Tries metrics on a few examples.

    Args:
        definition: The definition of the model.
        forward: Returns the model's outputs for features, and changes nothing.
        loss: The loss, which is measured too.
        generators: What Python code draws from.
        predict: Returns the model's outputs for features, as arrays.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        forward: Callable[[Any], Any],
        loss: Loss,
        generators: Generators,
        predict: Callable[[Arrays], Arrays],
    ) -> None:
        self._definition, self._forward, self._loss = definition, forward, loss
        self._generators, self._predict = generators, predict

    def on_example(self, example: Batch, metrics: Metrics) -> None:
        """Find out before the first step what a metric of the user's own does with batches.

        Raises:
            DefinitionError: It has a name that is taken, or keeps no state that could be kept.
        """
        if example.labels is None or not metrics.looks_at_outputs:
            return
        # What raises here raises again on the first batch, which can be named then.
        with contextlib.suppress(DataError, UserCodeError):
            self.on(example, metrics)

    def if_unproved(self, batch: Batch, metrics: Metrics) -> None:
        """Try on a batch what the example has not told."""
        if metrics.variables.unproved and not metrics.variables.ordered:
            self.on(batch, metrics)

    def on(self, batch: Batch, metrics: Metrics) -> None:
        """Compare a metric's states after two parts of a batch with their sum.

        Raises:
            DataError: A label or an id is out of range.
            DefinitionError: See `on_example`.
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
                if self._loss.is_there:
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
