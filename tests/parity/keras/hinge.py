"""Hinge, SquaredHinge, CategoricalHinge."""

import keras
from shared import fit, mlp, table_schema, yes_or_no

GROUP = "Losses"

data_schema, input_fn = table_schema, yes_or_no


def loss(labels, predictions):
    hinge = keras.losses.hinge(labels, predictions)
    squared = keras.losses.squared_hinge(labels, predictions)
    return hinge + squared + keras.losses.categorical_hinge(labels, predictions)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.05)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
