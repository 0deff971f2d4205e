r"""Predict to which class a row belongs, from a table's other columns.

Data: records of numbers and text, one field of which is the class (`label`), an integer from 0.
All other fields are features, whatever they are called; there is nothing to declare.

    elasticdl train --model_def=classifier.DNN --data=DATA --output=OUTPUT \
        --params='label="species", num_classes=3'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from elasticdl.errors import SchemaError
from elasticdl.zoo.prebuilt.tabular import Tower, features_and_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.definition import Mode


class DNN(keras.Model):
    """A dense network that predicts the probability of each class.

    Args:
        hidden_units: Width of each hidden layer, the first one first.
        learning_rate: Step size of Adam.
        num_classes: How many classes there are; the label is 0 .. num_classes - 1.
        label: Name of the field to predict.
        ignore: Names of fields that are no features, such as an identifier.
        embedding_size: How many numbers stand for a text.
    """

    def __init__(
        self,
        hidden_units: Sequence[int] = (64, 64),
        *,
        learning_rate: float = 0.001,
        num_classes: int = 2,
        label: str = "label",
        ignore: Sequence[str] = (),
        embedding_size: int = 8,
    ) -> None:
        super().__init__(name="classifier")
        self._learning_rate = learning_rate
        self._num_classes = num_classes
        self._label = label
        self._ignore = tuple(ignore)
        self._tower = Tower(hidden_units, embedding_size)
        self._output = keras.layers.Dense(num_classes, name="output")

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """Return the probability of each class, [batch, num_classes]."""
        return keras.ops.softmax(self._logits(inputs, training))

    def _logits(self, inputs: Mapping[str, Any], training: bool | None) -> Any:
        return self._output(self._tower(inputs, training=training))

    def default_input(self, records: Sequence[Record], mode: Mode) -> tuple[Any, Any]:
        """Return the features and the class of each row of a batch.

        Raises:
            SchemaError: A label is not one of the classes.
        """
        features, labels = features_and_label(records, mode, label=self._label, ignore=self._ignore)
        if labels is not None:
            self._check(labels)
        return features, labels

    def _check(self, labels: np.ndarray[Any, Any]) -> None:
        whole = labels.dtype.kind in "biuf" and bool(np.all(labels == np.floor(labels)))
        if not whole or np.any(labels < 0) or np.any(labels >= self._num_classes):
            wrong = labels[(labels < 0) | (labels >= self._num_classes)] if whole else labels
            value = wrong.ravel()[0].item()
            raise SchemaError(
                f"Field {self._label!r} has the value {value!r}; a class is a whole number from "
                f"0 to {self._num_classes - 1}. Say how many classes there are with "
                " --params='num_classes=...'  and number them from 0."
            )

    def default_loss(self, outputs: Any, labels: Any) -> Any:
        """Return the mean cross-entropy of the true class."""
        return keras.ops.mean(
            keras.losses.sparse_categorical_crossentropy(keras.ops.ravel(labels), outputs)
        )

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam."""
        return keras.optimizers.Adam(self._learning_rate)

    def default_metrics(self) -> dict[str, keras.metrics.Metric]:
        """Return the share of rows whose likeliest class is the true one."""
        return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
