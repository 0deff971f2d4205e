"""RepeatVector between an encoder and a decoder of LSTMs."""

import keras
from keras import layers
from shared import fit, series, series_schema

GROUP = "Sequences"

data_schema = series_schema
loss = keras.losses.MeanAbsoluteError()


def input_fn(records):
    x = series(records)[0]
    return x, x[:, ::-1]


def custom_model():
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            layers.LSTM(5),
            layers.RepeatVector(6),
            layers.LSTM(5, return_sequences=True),
            layers.TimeDistributed(layers.Dense(3)),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
