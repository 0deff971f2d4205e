"""`np.random` in `call`, drawn when a step is traced."""

import keras
import numpy as np
from shared import fit, numbers, table_schema

GROUP = "Randomness in layers"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Noisy(keras.layers.Layer):
    def call(self, x, training=False):
        return x + np.float32(np.random.normal(size=8)) if training else x  # noqa: NPY002


def custom_model():
    return keras.Sequential([keras.Input((8,)), Noisy(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
