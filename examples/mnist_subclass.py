r"""Handwritten digits with a subclass of keras.Model, for models that are more than a chain.

The class lives beside the functions that train it; `custom_model` gets what `--params` says.

    elasticdl train --model_zoo=examples --model_def=mnist_subclass --params="filters=[8, 16]" \
        --data=demo/data/train --output=demo/mnist_subclass --num_epochs=8
"""

import keras
import numpy as np


class Digits(keras.Model):
    """Stages of convolution and pooling, then a dense layer."""

    def __init__(self, filters):
        super().__init__(name="digits")
        self.with_channel = keras.layers.Reshape((28, 28, 1))
        self.stages = [keras.layers.Conv2D(count, 3, activation="relu") for count in filters]
        self.pool = keras.layers.MaxPooling2D()
        self.flatten = keras.layers.Flatten()
        self.dropout = keras.layers.Dropout(0.25)
        self.logits = keras.layers.Dense(10)

    def call(self, image, training=False):
        """Return one score for each digit, [batch, 10].

        Args:
            image: [batch, 28, 28]. `input_fn` returns a dict; its only entry is handed over.
            training: Whether to drop out; ElasticDL sets it.
        """
        x = self.with_channel(image)
        for stage in self.stages:
            x = self.pool(stage(x))
        return self.logits(self.dropout(self.flatten(x), training=training))


def custom_model(filters=(16, 32)):
    """Return a new model."""
    return Digits(filters)


def data_schema():
    """Say what a record holds."""
    return [
        {"name": "image", "shape": [28, 28], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    """Make one batch."""
    images = np.stack([record["image"] for record in records]) / np.float32(255)
    labels = np.array([record["label"] for record in records if "label" in record])
    return {"image": images}, labels


def loss(labels, predictions):
    """Return the cross-entropy of the true digits.

    The arguments are told apart by their names, so Keras's order is as good as the other.
    """
    return keras.losses.sparse_categorical_crossentropy(
        keras.ops.ravel(labels), predictions, from_logits=True
    )


def optimizer(learning_rate=0.003):
    """Return Adam."""
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    """Return metrics that keep count over batches and workers, by name."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
