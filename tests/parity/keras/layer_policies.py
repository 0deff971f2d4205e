"""A number format per layer (`dtype="mixed_float16"` of a layer)."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Number formats"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh", dtype="mixed_float16"),
            keras.layers.Rescaling(1e-4, dtype="mixed_float16"),
            keras.layers.Dense(6, dtype="float64"),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
