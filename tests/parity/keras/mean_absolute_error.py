"""MeanAbsoluteError."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Losses"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanAbsoluteError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
