"""Utilities in the input function: `pad_sequences`, `normalize` and `to_categorical`."""

import keras
import numpy as np
from keras import layers
from shared import fit, named

GROUP = "Input"

loss = keras.losses.CategoricalCrossentropy()


def data_schema():
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    raw_inputs = [[int(token) for token in record["tokens"] if token] for record in records]
    padded_inputs = keras.utils.pad_sequences(raw_inputs, padding="post")
    x = keras.utils.normalize(np.stack([record["x"] for record in records]), axis=-1, order=2)
    label = np.array([record["label"][0] for record in records])
    return {"tokens": padded_inputs, "x": x}, keras.utils.to_categorical(label, num_classes=3)


def custom_model():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    numbers = keras.Input((8,), name="x")
    x = layers.Embedding(input_dim=20, output_dim=6, mask_zero=True)(tokens)
    x = layers.LSTM(5)(x)
    x = layers.concatenate([x, layers.Dense(5, activation="relu")(numbers)])
    return keras.Model([tokens, numbers], layers.Dense(3, activation="softmax")(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.CategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
