"""PReLU, LeakyReLU, ELU, activations by name."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6),
            keras.layers.PReLU(),
            keras.layers.Dense(6, activation="gelu"),
            keras.layers.LeakyReLU(),
            keras.layers.Dense(6, activation="silu"),
            keras.layers.ELU(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
