"""A network whose weights and Adam slots weigh 100 MB."""

import keras
import numpy as np

SHAPE, CLASSES = (64,), 10
UNITS = 2864


def custom_model():
    return keras.Sequential(
        [
            keras.Input(SHAPE, name="image"),
            keras.layers.Dense(UNITS, activation="relu"),
            keras.layers.Dense(UNITS, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def data_schema():
    return [
        {"name": "image", "shape": list(SHAPE), "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    images = np.stack([record["image"] for record in records])
    return {"image": images}, np.stack([record["label"] for record in records])


def loss(output, labels):
    return keras.ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels.flatten(), output, from_logits=True)
    )


def optimizer():
    return keras.optimizers.Adam(0.0001)
