"""Embedding(mask_zero=True) with an LSTM."""

import keras
from shared import fit, named, tokens, tokens_schema

GROUP = "Sequences"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.LSTM(4),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
