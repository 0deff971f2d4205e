"""`steps_per_execution`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Custom training"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    model = mlp()
    model.compile(steps_per_execution=2)
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, steps_per_execution=2)
    return fit(data, model, input_fn)
