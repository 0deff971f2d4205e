r"""Small colour pictures with the functional API: a network with shortcuts.

CIFAR-10 has pictures of this shape; the sample data are patches of two photographs, ten kinds
of place, so that nothing needs to be downloaded.

    elasticdl data sample patches --output=demo/patches
    elasticdl train --model_zoo=examples --model_def=cifar10_functional_api \
        --data=demo/patches/train --output=demo/cifar10 --num_epochs=5
"""

import keras
import numpy as np


def _stage(x, filters):
    """Halve the picture; what a convolution finds is added to what was there."""
    shortcut = keras.layers.Conv2D(filters, 1)(keras.layers.AveragePooling2D(2)(x))
    x = keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = keras.layers.ReLU()(x)
    return keras.layers.Add()([x, shortcut])


inputs = keras.Input((32, 32, 3), name="image")
x = inputs
for filters in (16, 32, 64):
    x = _stage(x, filters)
x = keras.layers.GlobalAveragePooling2D()(x)
outputs = keras.layers.Dense(10)(x)

model = keras.Model(inputs, outputs, name="cifar10")


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
