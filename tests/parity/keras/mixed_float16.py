"""mixed_float16."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Number formats"
EXPECT = {
    "two workers": "equal within 1e-2: two halves of a batch round to float16 differently from the "
    "whole"
}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    keras.config.set_dtype_policy("mixed_float16")
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
