"""Classify small colour images; needs thousands of them.

Three stages of two convolutions, each normalised: the plain ancestor of today's image models,
about 0.3 million weights. With a few hundred images it is hardly better than chance.

Data: `image`, 32 x 32 x 3 colour values 0 .. 255, and `label`, the class, 0 .. 9; or a folder of
images for each class. Predictions are one probability per class.

    elasticdl train --model_def=cifar10 --data=DATA --output=OUTPUT --num_epochs=20
    elasticdl train --model_def=cifar10 --params="num_classes=3" --data=FOLDER --output=OUTPUT
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.batch import Record


def custom_model(dropout: float = 0.2, num_classes: int = 10) -> keras.Model:
    """Return the model: three convolution stages of growing width, pooled, and a dense layer."""
    inputs = keras.Input((32, 32, 3), name="image")
    x = inputs
    for filters in (32, 64, 128):
        for _ in range(2):
            # The normalisation has an offset already, so the convolution needs no bias.
            x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = keras.layers.BatchNormalization()(x)
            x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
        x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    outputs = keras.layers.Dense(num_classes, activation="softmax")(x)
    return keras.Model(inputs, outputs, name="cifar10")


def data_schema() -> list[dict[str, Any]]:
    """Return the fields of a record."""
    return [
        {"name": "image", "shape": [32, 32, 3], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records: Sequence[Record]) -> tuple[dict[str, Any], Any]:
    """Return images scaled to -1 .. 1, and their classes."""
    images = np.stack([record["image"] for record in records]) / np.float32(127.5) - 1
    return {"image": images}, np.array([record["label"] for record in records if "label" in record])


def loss(output: Any, labels: Any) -> Any:
    """Return the mean cross-entropy of the true class."""
    return keras.ops.mean(
        keras.losses.sparse_categorical_crossentropy(keras.ops.ravel(labels), output)
    )


def optimizer(learning_rate: float = 0.001) -> keras.optimizers.Optimizer:
    """Return Adam."""
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn() -> dict[str, keras.metrics.Metric]:
    """Return the accuracy: the share of images whose most probable class is the true one."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
