"""Records, and the one call of `fit`, that the features of this folder share."""

import keras
import numpy as np


def table_schema():
    """Eight numbers, a number to predict, one of three classes, and a weight."""
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
        {"name": "weight", "shape": [1], "dtype": "float32"},
    ]


def _column(records, name):
    return np.stack([record[name] for record in records])


def numbers(records):
    """Return (x, y): a number is to be predicted."""
    return _column(records, "x"), _column(records, "y")


def classes(records):
    """Return (x, label): one of three classes."""
    return _column(records, "x"), _column(records, "label")[:, 0]


def yes_or_no(records):
    """Return (x, whether y is positive)."""
    return _column(records, "x"), np.float32(_column(records, "y") > 0)


def image_schema():
    """A picture of 8 x 8 pixels with two channels, and one of three classes."""
    return [
        {"name": "image", "shape": [8, 8, 2], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def images(records):
    """Return (image, label)."""
    return _column(records, "image"), _column(records, "label")[:, 0]


def series_schema():
    """Six moments of three numbers, and a number to predict."""
    return [
        {"name": "series", "shape": [6, 3], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def series(records):
    """Return (series, y)."""
    return _column(records, "series"), _column(records, "y")


def tokens_schema():
    """Up to ten tokens below 20, filled up with zeros, and a number to predict."""
    return [
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def tokens(records):
    """Return (tokens, y)."""
    return _column(records, "tokens"), _column(records, "y")


def text_schema():
    """A sentence, and a number to predict."""
    return [
        {"name": "text", "shape": [1], "dtype": "string"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def mlp(units=1, **more):
    """Return two dense layers; `more` goes to the first."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh", **more),
            keras.layers.Dense(units),
        ]
    )


def image_net():
    """Return a small convolutional network for the pictures of `image_schema`."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )


def named(metrics):
    """Return metrics that are called as they are keyed."""
    for name, metric in metrics.items():
        metric.name = name
    return list(metrics.values())


def fit(data, model, input_fn, callbacks=()):
    """Return `model.fit` on records in their order, and the model."""
    history = model.fit(
        *input_fn(data.train),
        batch_size=data.batch_size,
        epochs=data.epochs,
        shuffle=False,
        validation_data=input_fn(data.validation),
        callbacks=list(callbacks),
        verbose=0,
    )
    return history.history, model
