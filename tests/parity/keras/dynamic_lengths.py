"""Batches of different sequence lengths."""

import keras
from shared import tokens, tokens_schema, train_on_batches

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
    return train_on_batches(data, model, input_fn)
