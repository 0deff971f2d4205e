"""What the benchmark models share: pictures in, the logits of ten classes out, Adam."""

import keras
import numpy as np

CLASSES = 10


def schema_of(shape):
    return [
        {"name": "image", "shape": list(shape), "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    images = np.stack([record["image"] for record in records])
    return {"image": images}, np.stack([record["label"] for record in records])


def loss(output, labels):
    return keras.ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels.flatten(), output, from_logits=True)
    )


def optimizer(learning_rate=0.001):
    return keras.optimizers.Adam(learning_rate)
