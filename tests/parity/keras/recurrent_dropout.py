"""Recurrent dropout."""

import keras
from shared import fit, series, series_schema

GROUP = "Sequences"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            keras.layers.LSTM(4, dropout=0.3, recurrent_dropout=0.3),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
