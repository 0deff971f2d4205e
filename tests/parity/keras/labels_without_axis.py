"""Labels [n] for outputs [n, 1], and a loss function of one's own: `fit` adds the axis."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Losses"

data_schema = table_schema


def input_fn(records):
    x, y = numbers(records)
    return x, y[:, 0]


def loss(labels, outputs):
    return ops.mean(ops.square(labels - outputs))


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
