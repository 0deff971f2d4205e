"""EarlyStopping."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
JOB = {"num_epochs": 4}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    history, model = fit(data, model, input_fn, callbacks())
    assert len(history["loss"]) == 2
    return history, model
