"""The convolutional network that published ElasticDL examples train."""

import keras
import numpy as np

SHAPE, CLASSES = (28, 28), 10


def custom_model():
    inputs = keras.Input(SHAPE, name="image")
    x = keras.layers.Reshape((28, 28, 1))(inputs)
    x = keras.layers.Conv2D(32, 3, activation="relu")(x)
    x = keras.layers.Conv2D(64, 3, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dropout(0.25)(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(x))


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
    return keras.optimizers.Adam(0.001)
