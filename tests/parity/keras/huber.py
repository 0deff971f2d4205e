"""Huber, LogCosh."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Losses"

data_schema, input_fn = table_schema, numbers


def loss(labels, predictions):
    huber = keras.losses.huber(labels, predictions, delta=0.5)
    return huber + keras.losses.log_cosh(labels, predictions)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
