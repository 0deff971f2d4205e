r"""Predict a number from a table's other columns.

Data: records of numbers and text, one field of which is the number to learn (`label`). All
other fields are features, whatever they are called; there is nothing to declare. `columns`
describes them in detail: categories, dates, lists, missing values.

    elasticdl train --model_def=regressor.DNN --data=DATA --output=OUTPUT \
        --params='label="salary", hidden_units=[64, 32]'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from elasticdl.zoo.prebuilt.label import label_entry
from elasticdl.zoo.prebuilt.table_params import regressor_completion
from elasticdl.zoo.prebuilt.tables import ModelArguments, TableReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.definition import Mode
    from elasticdl.zoo.prebuilt.table_params import Completion


@keras.saving.register_keras_serializable("elasticdl", "regressor.DNN")
class DNN(keras.Model):
    """A dense network that predicts a number.

    Args:
        hidden_units: Width of each hidden layer, the first one first.
        learning_rate: Step size of Adam.
        label: Name of the field to predict.
        ignore: Names of fields that are not features, such as an identifier.
        label_mean: Approximate mean of the label.
        label_scale: Approximate standard deviation of the label. The network learns (label - mean)
            / scale, which saves many epochs if the label is far from mean 0 and deviation 1.
            Predictions are in the label's own unit.
        embedding_size: Length of the trained vector that represents a string.
        columns: The features, a dict each; see "Features of a table" in docs/guides/model-files.md.
            Without it, all fields are features.
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
        super().__init__(name="regressor")
        self._given = ModelArguments(
            {
                "hidden_units": hidden_units,
                "learning_rate": learning_rate,
                "label": label,
                "ignore": ignore,
                "label_mean": label_mean,
                "label_scale": label_scale,
                "embedding_size": embedding_size,
                "columns": columns,
            }
        )
        self._learning_rate = learning_rate
        self._label = label
        self._label_mean = label_mean
        self._label_scale = label_scale
        self._table = TableReader.of(columns, label=label, ignore=ignore)
        self._tower = self._table.tower(hidden_units, embedding_size)
        self._output = keras.layers.Dense(1, name="output")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create the same model."""
        return dict(self._given.arguments)

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """Return the predicted label, [batch, 1], in its own unit."""
        return self._label_mean + self._label_scale * self._scaled(inputs, training)

    def _scaled(self, inputs: Mapping[str, Any], training: bool | None) -> Any:
        return self._output(self._tower(inputs, training=training))

    @classmethod
    def complete_params(cls, params: Mapping[str, Any]) -> Completion | None:
        """Return a function that computes, from the table, the params that the user did not give.

        Args:
            params: The params that the user gave.

        Returns:
            Function (summaries of the table's columns) -> all params. None if none is missing.
        """
        return regressor_completion(params, f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}")

    def data_schema(self) -> list[dict[str, Any]] | None:
        """Return the fields to read from the table, or None to read all of them."""
        return self._table.schema(label_entry(self._label, None))

    def default_input(self, records: Sequence[Record], mode: Mode) -> tuple[Any, Any]:
        """Return the features and the label of a batch of rows."""
        return self._table.features_and_label(records, mode)

    def default_loss(self, outputs: Any, labels: Any) -> Any:
        """Return the mean squared error in units of `label_scale`."""
        error = (outputs - keras.ops.cast(labels, outputs.dtype)) / self._label_scale
        return keras.ops.mean(keras.ops.square(error))

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return Adam."""
        return keras.optimizers.Adam(self._learning_rate)

    def default_metrics(self) -> dict[str, keras.metrics.Metric]:
        """Return the mean absolute error, and the root mean squared error."""
        return {
            "mean_absolute_error": keras.metrics.MeanAbsoluteError(),
            "root_mean_squared_error": keras.metrics.RootMeanSquaredError(),
        }
