"""EinsumDense."""

import keras
from shared import fit, series, series_schema

GROUP = "Layers"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            keras.layers.EinsumDense("abc,cd->abd", output_shape=(6, 4), bias_axes="d"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
