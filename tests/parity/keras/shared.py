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


def next_tokens(records):
    """Return (tokens, the next tokens, weights), as long as the longest of the batch."""
    x, _ = tokens(records)
    x = x[:, : int((x > 0).sum(1).max())]
    return x[:, :-1], x[:, 1:], np.float32(x[:, 1:] != 0)


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


def token_net():
    """Return a network that predicts each next token, without a mask."""
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int64"),
            keras.layers.Embedding(20, 4),
            keras.layers.GRU(4, return_sequences=True),
            keras.layers.Dense(20),
        ]
    )


class FocalLoss(keras.losses.Loss):
    """A cross entropy of three classes that counts easy examples less."""

    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def call(self, y_true, y_pred):
        labels = keras.ops.one_hot(keras.ops.cast(y_true, "int32"), 3)
        p = keras.ops.sum(keras.ops.softmax(y_pred) * labels, -1)
        return -((1 - p) ** self.gamma) * keras.ops.log(p)


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


def train_on_batches(data, model, input_fn):
    """Return the losses of a loop of `model.train_on_batch`, for batches of several lengths."""
    losses = []
    for _ in range(data.epochs):
        total = 0.0
        for first in range(0, len(data.train), data.batch_size):
            x, y, *weights = input_fn(data.train[first : first + data.batch_size])
            total += float(model.train_on_batch(x, y, *weights)) * len(y)
            model.reset_metrics()
        losses.append(total / len(data.train))
    return {"loss": losses}, model
