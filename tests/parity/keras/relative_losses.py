"""MeanAbsolutePercentageError, MeanSquaredLogarithmicError."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Losses"

data_schema, input_fn = table_schema, numbers


def loss(labels, predictions):
    relative = keras.losses.mean_absolute_percentage_error(labels, predictions)
    return relative / 100 + keras.losses.mean_squared_logarithmic_error(labels, predictions)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.001)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
