"""ReversibleEmbedding and a regularized Embedding, trained with Adam."""

import keras
import numpy as np
from shared import fit, tokens_schema

GROUP = "Sequences"

data_schema = tokens_schema
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def input_fn(records):
    tokens = np.stack([record["tokens"] for record in records])
    return tokens[:, :-1], tokens[:, 1:]


def custom_model():
    inputs = keras.Input((9,), dtype="int64")
    tied = keras.layers.ReversibleEmbedding(20, 6)
    other = keras.layers.Embedding(20, 6, embeddings_regularizer=keras.regularizers.L2(0.01))
    x = keras.layers.Dense(6, activation="tanh")(tied(inputs) + other(inputs))
    return keras.Model(inputs, tied(x, reverse=True))


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
