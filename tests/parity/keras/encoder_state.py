"""Sequence to sequence: the `return_state` of one LSTM is the `initial_state` of another."""

import keras
import numpy as np
from keras import layers
from shared import fit, tokens, tokens_schema

GROUP = "Sequences"

data_schema = tokens_schema
loss = keras.losses.SparseCategoricalCrossentropy()


def input_fn(records):
    """Return (tokens and those to be read backwards so far, tokens backwards)."""
    source = tokens(records)[0]
    target = source[:, ::-1]
    return {"source": source, "target": np.pad(target, ((0, 0), (1, 0)))[:, :-1]}, target.copy()


def custom_model():
    source = keras.Input((10,), dtype="int64", name="source")
    target = keras.Input((10,), dtype="int64", name="target")
    embedding = layers.Embedding(20, 6)
    _, *states = layers.LSTM(8, return_state=True)(embedding(source))
    decoder = layers.LSTM(8, return_sequences=True, return_state=True)
    outputs, _, _ = decoder(embedding(target), initial_state=states)
    outputs = layers.Dense(20, activation="softmax")(outputs)
    return keras.Model({"source": source, "target": target}, outputs)


def optimizer():
    return keras.optimizers.SGD(0.5)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
