"""`loss_scale_factor` of an optimizer, with clipnorm."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Gradients"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9, loss_scale_factor=64.0, clipnorm=0.5)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
