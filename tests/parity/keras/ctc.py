"""CTC."""

import keras
import numpy as np
from shared import fit, series, series_schema

GROUP = "Losses"

loss = keras.losses.CTC()


data_schema = series_schema


def input_fn(records):
    """Return (series, two symbols)."""
    x, y = series(records)
    return x, np.concatenate([1 + (y > 0), 3 + (y > 1)], axis=1).astype("int32")


def custom_model():
    return keras.Sequential(
        [keras.Input((6, 3)), keras.layers.GRU(4, return_sequences=True), keras.layers.Dense(5)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
