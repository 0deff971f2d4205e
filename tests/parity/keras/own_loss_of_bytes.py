"""A hinge loss of one's own, and labels of uint8: `fit` casts them to float32."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Losses"

data_schema = table_schema


def input_fn(records):
    x, y = numbers(records)
    return x, np.uint8(y > 0)


def loss(labels, outputs):
    return ops.mean(ops.maximum(0.0, 1.0 - (2 * labels - 1) * outputs), axis=-1)


def custom_model():
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(6, activation="tanh"), layers.Dense(1)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
