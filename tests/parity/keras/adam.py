"""Adam."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
