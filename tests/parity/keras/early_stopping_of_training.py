"""EarlyStopping that monitors a training metric."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = "refused: metrics are computed in validation only; monitor `val_mae`"
REFUSAL = "EarlyStopping monitors 'mae'"
JOB = {"num_epochs": 4}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError(name="mae")}


def callbacks():
    return [keras.callbacks.EarlyStopping("mae", min_delta=10.0, patience=1)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=list(eval_metrics_fn().values()))
    history, model = fit(data, model, input_fn, callbacks())
    assert len(history["loss"]) == 2
    return history, model
