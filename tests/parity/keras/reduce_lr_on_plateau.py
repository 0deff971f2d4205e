"""ReduceLROnPlateau."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.1, patience=0, min_delta=1.0)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
