"""Bayesian personalized ranking: `ops.log_sigmoid` of the difference of two scores."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, tokens_schema

GROUP = "Losses"

data_schema = tokens_schema


def input_fn(records):
    """Return (a user, an item that was taken and one that was not, how often it was taken)."""
    tokens = np.stack([record["tokens"] for record in records])
    features = {"user": tokens[:, 0], "taken": tokens[:, 1], "other": tokens[:, 2]}
    return features, np.float32(tokens[:, 3] > 9)[:, None] + 1


def loss(labels, predictions):
    return -labels * ops.log_sigmoid(predictions)


def custom_model():
    inputs = {
        name: keras.Input((), dtype="int64", name=name) for name in ("user", "taken", "other")
    }
    users, items = layers.Embedding(20, 4), layers.Embedding(20, 4)
    bias = layers.Embedding(20, 1, embeddings_initializer="zeros")

    def score(item):
        return layers.Dot(axes=1)([users(inputs["user"]), items(item)]) + bias(item)

    return keras.Model(inputs, score(inputs["taken"]) - score(inputs["other"]))


def optimizer():
    return keras.optimizers.SGD(0.5)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
