"""Discretization, CategoryEncoding."""

import keras
import numpy as np
from shared import fit, numbers, table_schema

GROUP = "Preprocessing layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    bins = keras.layers.Discretization(num_bins=4)
    bins.adapt(np.linspace(-2, 2, 64, dtype="float32").reshape(8, 8))
    return keras.Sequential(
        [
            keras.Input((8,)),
            bins,
            keras.layers.CategoryEncoding(4, output_mode="multi_hot"),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
