"""A mixture density network without an input function: its loss adds an axis to labels [n]."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit

GROUP = "Losses"


def data_schema():
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def loss(labels, outputs):
    scores, means, scales = ops.split(outputs, 3, axis=1)
    scales = ops.softplus(scales) + 1e-3
    distances = (ops.expand_dims(labels, 1) - means) / scales
    constant = 0.5 * float(np.log(2 * np.pi))
    of_each = ops.log_softmax(scores) - 0.5 * ops.square(distances) - ops.log(scales) - constant
    return -ops.mean(ops.logsumexp(of_each, axis=1))


def custom_model():
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, activation="tanh"), layers.Dense(9)]
    )


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def plain(data):
    def examples(records):
        x = np.stack([record["x"] for record in records])
        return x, np.stack([record["y"][0] for record in records])

    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, examples)
