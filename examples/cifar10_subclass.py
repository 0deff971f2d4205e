r"""Small colour pictures with a subclass: a layer of one's own, used three times.

    elasticdl train --model_zoo=examples --model_def=cifar10_subclass \
        --data=demo/patches/train --output=demo/cifar10_subclass --num_epochs=5
"""

import keras
import numpy as np


class Stage(keras.layers.Layer):
    """Halves the picture; what a convolution finds is added to what was there."""

    def __init__(self, filters):
        super().__init__()
        self.halve = keras.layers.AveragePooling2D(2)
        self.shortcut = keras.layers.Conv2D(filters, 1)
        self.convolution = keras.layers.Conv2D(
            filters, 3, strides=2, padding="same", use_bias=False
        )
        self.normalise = keras.layers.BatchNormalization(momentum=0.9)

    def build(self, input_shape):
        """Make the weights of the layers inside."""
        self.shortcut.build(input_shape)
        self.convolution.build(input_shape)
        self.normalise.build(self.convolution.compute_output_shape(input_shape))

    def call(self, x, training=False):
        """Return [batch, height / 2, width / 2, filters]."""
        found = self.normalise(self.convolution(x), training=training)
        return keras.ops.relu(found) + self.shortcut(self.halve(x))


class Pictures(keras.Model):
    """Three stages and an average over what they found."""

    def __init__(self):
        super().__init__(name="pictures")
        self.stages = [Stage(filters) for filters in (16, 32, 64)]
        self.average = keras.layers.GlobalAveragePooling2D()
        self.logits = keras.layers.Dense(10)

    def call(self, image, training=False):
        """Return one score for each kind, [batch, 10]."""
        x = image
        for stage in self.stages:
            x = stage(x, training=training)
        return self.logits(self.average(x))


model = Pictures()


def data_schema():
    """Say what a record holds."""
    return [
        {"name": "image", "shape": [32, 32, 3], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    """Make one batch: colour values 0 .. 255 become -1 .. 1."""
    images = np.stack([record["image"] for record in records]) / np.float32(127.5) - 1
    labels = np.array([record["label"] for record in records if "label" in record])
    return {"image": images}, labels


def loss(output, labels):
    """Return the cross-entropy of the true kinds."""
    return keras.losses.sparse_categorical_crossentropy(
        keras.ops.ravel(labels), output, from_logits=True
    )


def optimizer(learning_rate=0.003):
    """Return Adam."""
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    """Return metrics that keep count over batches and workers, by name."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
