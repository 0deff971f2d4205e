"""Conv1D, GlobalMaxPooling1D."""

import keras
from shared import fit, series, series_schema

GROUP = "Convolutions and pooling"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            keras.layers.Conv1D(4, 3, padding="causal", activation="tanh"),
            keras.layers.GlobalMaxPooling1D(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
