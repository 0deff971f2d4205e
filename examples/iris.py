r"""Flowers from four measurements: a Keras class that brings its own defaults.

The whole contract is in the class, so the same class also trains with plain Keras. The command
line can replace any part by a function of this folder: `--loss=iris.cautious_loss`.

    elasticdl data sample iris --output=demo/iris
    elasticdl train --model_zoo=examples --model_def=iris.Flowers --data=demo/iris/train \
        --params="hidden_units=[32, 16], learning_rate=0.01" \
        --output=demo/iris_model --num_epochs=30
"""

import keras
import numpy as np


class Flowers(keras.Model):
    """A small dense network that tells three kinds of iris apart.

    Args:
        hidden_units: Width of each hidden layer.
        learning_rate: Step size of the optimizer.
    """

    def __init__(self, hidden_units=(16,), learning_rate=0.01):
        super().__init__(name="flowers")
        self.learning_rate = learning_rate
        self.hidden = [keras.layers.Dense(units, activation="relu") for units in hidden_units]
        self.logits = keras.layers.Dense(3)

    def call(self, measurements):
        """Return one score for each kind, [batch, 3]."""
        x = measurements
        for layer in self.hidden:
            x = layer(x)
        return self.logits(x)

    def default_input(self, records):
        """Make one batch; a record has a field for each column of the table."""
        columns = sorted(name for name in records[0] if name != "label")
        measurements = np.array(
            [[record[name].item() for name in columns] for record in records], "float32"
        )
        kinds = np.array([record["label"].item() for record in records if "label" in record])
        return measurements, kinds

    def default_loss(self, outputs, labels):
        """Return the cross-entropy of the true kinds."""
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    def default_optimizer(self):
        """Return Adam."""
        return keras.optimizers.Adam(self.learning_rate)

    def default_metrics(self):
        """Return the share of flowers whose kind is right."""
        return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def cautious_loss(outputs, labels):
    """Return a cross-entropy that keeps the model from being too sure of itself."""
    kinds = keras.ops.one_hot(labels, 3)
    return keras.losses.categorical_crossentropy(
        kinds, outputs, from_logits=True, label_smoothing=0.1
    )
