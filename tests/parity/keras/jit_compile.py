"""`jit_compile=True`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Custom training"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    model = mlp()
    model.compile(jit_compile=True)
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, jit_compile=True)
    return fit(data, model, input_fn)
