"""SGD with `weight_decay`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(learning_rate=0.05, momentum=0.9, weight_decay=0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
