r"""Predict to which class a row belongs, from a table's other columns.

Data: records of numbers and text, one field of which is the class (`label`): text, numbers or
booleans. For tables (CSV, Parquet), its values in the training data become the classes; for other
files, it is an integer from 0 to `num_classes` - 1. All other fields are features, whatever they
are called; there is nothing to declare. `columns` describes them in detail: categories, dates,
lists, missing values.

    elasticdl train --model_def=classifier.DNN --data=DATA --output=OUTPUT \
        --params='label="species"'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from elasticdl.data.class_names import no_label_advice
from elasticdl.errors import SchemaError, UsageError
from elasticdl.zoo.prebuilt.label import Classes, balanced, label_entry
from elasticdl.zoo.prebuilt.table_params import classifier_completion
from elasticdl.zoo.prebuilt.tables import ModelArguments, TableReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.definition import Mode
    from elasticdl.zoo.prebuilt.table_params import Completion


@dataclass(frozen=True)
class _Weights:
    """Wraps the class weights, because Keras would track a plain dict as part of the model."""

    weights: Mapping[int, float]


@keras.saving.register_keras_serializable("elasticdl", "classifier.DNN")
class DNN(keras.Model):
    """A dense network that predicts the probability of each class.

    Args:
        hidden_units: Width of each hidden layer, the first one first.
        learning_rate: Step size of Adam.
        num_classes: Number of classes; the label is 0 .. num_classes - 1. By default the number
            of `classes`, or 2 if there are none.
        classes: The label's own values, in order: all text, all numbers or all booleans. By default
            those in the training data, if they are tables and `num_classes` is not given.
            Predictions are then these values, with their probability.
        class_counts: Number of rows of each class. If given, rows are weighted so that all classes
            have the same total weight in the loss.
        label: Name of the field to predict.
        ignore: Names of fields that are not features, such as an identifier.
        embedding_size: Length of the trained vector that represents a string.
        columns: The features, a dict each; see "Features of a table" in docs/guides/model-files.md.
            Without it, all fields are features.
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
        super().__init__(name="classifier")
        self._given = ModelArguments(
            {
                "hidden_units": hidden_units,
                "learning_rate": learning_rate,
                "num_classes": num_classes,
                "classes": classes,
                "class_counts": class_counts,
                "label": label,
                "ignore": ignore,
                "embedding_size": embedding_size,
                "columns": columns,
            }
        )
        self._learning_rate = learning_rate
        self._classes = None if classes is None else Classes.of(classes)
        self._num_classes = _number_of(num_classes, self._classes)
        self._class_weight = (
            None if class_counts is None else _Weights(balanced(class_counts, self._num_classes))
        )
        self._label = label
        self._table = TableReader.of(columns, label=label, ignore=ignore)
        self._tower = self._table.tower(hidden_units, embedding_size)
        self._output = keras.layers.Dense(self._num_classes, name="output")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create the same model."""
        return dict(self._given.arguments)

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """Return the probability of each class, [batch, num_classes]."""
        return keras.ops.softmax(self._logits(inputs, training))

    def _logits(self, inputs: Mapping[str, Any], training: bool | None) -> Any:
        return self._output(self._tower(inputs, training=training))

    @classmethod
    def complete_params(cls, params: Mapping[str, Any]) -> Completion | None:
        """Return a function that computes, from the table, the params that the user did not give.

        Args:
            params: The params that the user gave.

        Returns:
            Function (summaries of the table's columns) -> all params. None if none is missing.
        """
        return classifier_completion(params, f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}")

    def data_schema(self) -> list[dict[str, Any]] | None:
        """Return the fields to read from the table, or None to read all of them."""
        return self._table.schema(label_entry(self._label, self._classes))

    def default_input(self, records: Sequence[Record], mode: Mode) -> tuple[Any, Any]:
        """Return the features and the class of each row of a batch.

        Raises:
            SchemaError: A label is not one of the classes.
        """
        features, labels = self._table.features_and_label(records, mode)
        if labels is not None and self._classes is not None:
            labels = self._classes.ids(labels, self._label)
        elif labels is not None:
            self._check(labels)
        return features, labels

    def _check(self, labels: np.ndarray[Any, Any]) -> None:
        whole = labels.dtype.kind in "biuf" and bool(np.all(labels == np.floor(labels)))
        if not whole or np.any(labels < 0) or np.any(labels >= self._num_classes):
            wrong = labels[(labels < 0) | (labels >= self._num_classes)] if whole else labels
            value = wrong.ravel()[0]
            value = value.item() if isinstance(value, np.generic) else value
            value = int(value) if isinstance(value, float) and value.is_integer() else value
            numbered = "number the classes from 0"
            listed = "list the values of the label: --params='classes=[...]'"
            advice = (
                no_label_advice(self._label, f"{numbered}, or {listed}")
                if value == -1
                else f"Set the number of classes with  --params='num_classes=...'  and number them "
                f"from 0, or {listed}"
            )
            raise SchemaError(
                f"Field {self._label!r} has the value {value!r}; a class is a whole number from 0 "
                f"to {self._num_classes - 1}. {advice}"
            )

    def default_predictions(self, outputs: Any) -> dict[str, Any] | None:
        """Return the columns to write: the predicted class, its probability, all probabilities.

        None if the label's own values are unknown, so that a class is only a number.
        """
        return None if self._classes is None else self._classes.predictions(outputs)

    def default_classes(self) -> Sequence[str | float | bool] | None:
        """Return the label's value for each output of the model, in order; None if unknown."""
        return None if self._classes is None else self._classes.values

    def default_loss(self, outputs: Any, labels: Any) -> Any:
        """Return the cross-entropy of the true class: its mean over the batch.

        With class weights, return one value per row instead; the trainer then weights the rows.
        """
        losses = keras.losses.sparse_categorical_crossentropy(keras.ops.ravel(labels), outputs)
        return keras.ops.mean(losses) if self._class_weight is None else losses

    def default_class_weight(self) -> Mapping[int, float] | None:
        """Return class number -> weight of its rows in the loss; None if all weights are equal."""
        return None if self._class_weight is None else self._class_weight.weights

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam."""
        return keras.optimizers.Adam(self._learning_rate)

    def default_metrics(self) -> dict[str, keras.metrics.Metric]:
        """Return the accuracy: the share of rows whose most probable class is the true one."""
        return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def _number_of(num_classes: int | None, classes: Classes | None) -> int:
    if classes is None:
        return 2 if num_classes is None else num_classes
    if num_classes not in (None, len(classes.values)):
        raise UsageError(
            f"--params: num_classes is {num_classes}, but classes has {len(classes.values)} "
            "values. Leave num_classes out."
        )
    return len(classes.values)
