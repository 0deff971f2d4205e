"""RMSprop, centered."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.RMSprop(0.005, momentum=0.5, centered=True)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
