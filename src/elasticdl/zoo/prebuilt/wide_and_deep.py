r"""Predict from a table by memorizing and generalizing: a linear model plus a network.

The wide part has a weight for each value of a text field and for each pair of values of two text
fields, such as role "nurse" with city "Rome". The deep part is the dense network of `regressor` and
`classifier`. Worth trying before those when the table has text fields. After Cheng et al., 2016,
https://arxiv.org/abs/1606.07792.

Data: as for `regressor.DNN` and `classifier.DNN`.

    elasticdl train --model_def=wide_and_deep.Regressor --data=DATA --output=OUTPUT \
        --params='label="salary"'
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import keras

from elasticdl.zoo.prebuilt import classifier, regressor
from elasticdl.zoo.prebuilt.column_layers import ColumnWide
from elasticdl.zoo.prebuilt.standardise import Standardise
from elasticdl.zoo.prebuilt.tabular import NUM_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.zoo.prebuilt.tables import TableReader


@keras.saving.register_keras_serializable("elasticdl", "wide_and_deep.Regressor")
class Regressor(regressor.DNN):
    """Predicts a number from single values, pairs of values and a dense network.

    Args:
        hidden_units: Width of each hidden layer of the deep part, the first one first.
        learning_rate: Step size of Adam.
        label: Name of the field to predict.
        ignore: Names of fields that are not features, such as an identifier.
        label_mean: Approximate mean of the label; see `regressor.DNN`.
        label_scale: Approximate standard deviation of the label; see `regressor.DNN`.
        embedding_size: Length of the trained vector that represents a string in the deep part.
        columns: The features, a dict each; see `regressor.DNN`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int] = (64, 64),
        *,
        learning_rate: float = 0.001,
        label: str = "label",
        ignore: Sequence[str] = (),
        label_mean: float = 0.0,
        label_scale: float = 1.0,
        embedding_size: int = 8,
        columns: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            hidden_units,
            learning_rate=learning_rate,
            label=label,
            ignore=ignore,
            label_mean=label_mean,
            label_scale=label_scale,
            embedding_size=embedding_size,
            columns=columns,
        )
        self._wide = _wide(self._table, 1)

    def _scaled(self, inputs: Mapping[str, Any], training: bool | None) -> Any:
        return super()._scaled(inputs, training) + self._wide(inputs, training=training)


@keras.saving.register_keras_serializable("elasticdl", "wide_and_deep.Classifier")
class Classifier(classifier.DNN):
    """Predicts the probability of each class from single values, pairs and a dense network.

    Args:
        hidden_units: Width of each hidden layer of the deep part, the first one first.
        learning_rate: Step size of Adam.
        num_classes: Number of classes; see `classifier.DNN`.
        classes: The label's own values, in order.
        class_counts: Number of rows of each class. If given, rows are weighted so that all classes
            have the same total weight in the loss.
        label: Name of the field to predict.
        ignore: Names of fields that are not features, such as an identifier.
        embedding_size: Length of the trained vector that represents a string in the deep part.
        columns: The features, a dict each; see `regressor.DNN`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int] = (64, 64),
        *,
        learning_rate: float = 0.001,
        num_classes: int | None = None,
        classes: Sequence[str | float | bool] | None = None,
        class_counts: Sequence[int] | None = None,
        label: str = "label",
        ignore: Sequence[str] = (),
        embedding_size: int = 8,
        columns: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            hidden_units,
            learning_rate=learning_rate,
            num_classes=num_classes,
            classes=classes,
            class_counts=class_counts,
            label=label,
            ignore=ignore,
            embedding_size=embedding_size,
            columns=columns,
        )
        self._wide = _wide(self._table, self._num_classes)

    def _logits(self, inputs: Mapping[str, Any], training: bool | None) -> Any:
        return super()._logits(inputs, training) + self._wide(inputs, training=training)


def _wide(table: TableReader, num_outputs: int) -> keras.layers.Layer:
    return Wide(num_outputs) if table.columns is None else ColumnWide(table.columns, num_outputs)


class Wide(keras.layers.Layer):
    """Layer of weighted sums of numbers, tokens (hashed strings) and pairs of tokens.

    Args:
        num_outputs: Number of weighted sums.
    """

    def __init__(self, num_outputs: int) -> None:
        super().__init__(name="wide")
        self._standardise = Standardise(name="standardise")
        self._numbers = keras.layers.Dense(num_outputs, use_bias=False, name="numbers")
        # Zeros: a value that was never seen in training must add nothing.
        self._tokens = keras.layers.Embedding(
            NUM_BUCKETS, num_outputs, embeddings_initializer="zeros", name="tokens"
        )
        self._pairs = keras.layers.Embedding(
            NUM_BUCKETS, num_outputs, embeddings_initializer="zeros", name="pairs"
        )

    def build(self, input_shape: Mapping[str, tuple[int | None, ...]]) -> None:
        """Create the weights for features of these shapes."""
        if "numbers" in input_shape:
            self._standardise.build(input_shape["numbers"])
            self._numbers.build(input_shape["numbers"])
        if "tokens" in input_shape:
            self._tokens.build(input_shape["tokens"])
            if (input_shape["tokens"][-1] or 0) > 1:
                self._pairs.build(input_shape["tokens"])
        self.built = True

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """Return the weighted sums, [batch, num_outputs]."""
        total: Any = 0.0
        if "numbers" in inputs:
            standardised = self._standardise(inputs["numbers"], training=training)
            total = total + self._numbers(standardised)
        if "tokens" in inputs:
            tokens = inputs["tokens"]
            total = total + keras.ops.sum(self._tokens(tokens), axis=1)
            pairs = [
                # A prime, so that (a, b) and (b, a) fall into different buckets.
                (tokens[:, first] * 31 + tokens[:, second] + number) % NUM_BUCKETS
                for number, (first, second) in enumerate(
                    itertools.combinations(range(tokens.shape[-1]), 2)
                )
            ]
            if pairs:
                weights = self._pairs(keras.ops.stack(pairs, axis=1))
                total = total + keras.ops.sum(weights, axis=1)
        return total
