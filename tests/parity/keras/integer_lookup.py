"""IntegerLookup."""

import keras
from shared import fit, tokens, tokens_schema

GROUP = "Preprocessing layers"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.IntegerLookup(vocabulary=[1, 2, 3, 5, 7, 11, 13], output_mode="multi_hot"),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
