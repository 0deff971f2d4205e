"""Batches of different sequence lengths."""

import keras
from shared import tokens, tokens_schema

GROUP = "Sequences"

loss = keras.losses.MeanSquaredError()


data_schema = tokens_schema


def input_fn(records):
    """Return (tokens as long as the longest of the batch, y)."""
    x, y = tokens(records)
    return x[:, : int((x > 0).sum(1).max())], y


def custom_model():
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int64"),
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.GRU(4),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    losses = []
    for _ in range(data.epochs):
        total = 0.0
        for first in range(0, len(data.train), data.batch_size):
            x, y = input_fn(data.train[first : first + data.batch_size])
            total += float(model.train_on_batch(x, y)) * len(y)
            model.reset_metrics()
        losses.append(total / len(data.train))
    return {"loss": losses}, model
