"""float64."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Number formats"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,), dtype="float64"),
            keras.layers.Dense(6, activation="tanh", dtype="float64"),
            keras.layers.Dense(1, dtype="float64"),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
