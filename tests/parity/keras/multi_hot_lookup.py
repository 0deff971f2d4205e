"""IntegerLookup that counts, with a mask token, beside Discretization with given bounds."""

import keras
import numpy as np
from keras import layers
from shared import fit

GROUP = "Preprocessing layers"

loss = keras.losses.MeanSquaredError()


def data_schema():
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def input_fn(records):
    features = {
        "x": np.stack([record["x"][:2] for record in records]),
        "tokens": np.stack([record["tokens"] for record in records]),
    }
    return features, np.stack([record["y"] for record in records])


def custom_model():
    lookup = layers.IntegerLookup(output_mode="count", mask_token=0, num_oov_indices=2)
    lookup.adapt(np.arange(1, 15).reshape(-1, 1))
    bounds = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0], output_mode="one_hot")
    x, tokens = keras.Input((2,), name="x"), keras.Input((10,), name="tokens", dtype="int64")
    counts = lookup(tokens)
    places = layers.Flatten()(layers.Concatenate()([bounds(x[:, :1]), bounds(x[:, 1:])]))
    joined = layers.Concatenate()([counts, places])
    return keras.Model({"x": x, "tokens": tokens}, layers.Dense(1)(joined))


def optimizer():
    return keras.optimizers.Adagrad(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
