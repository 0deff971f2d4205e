"""A function as a metric."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Metrics"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def close(labels, predictions):
    return keras.ops.cast(keras.ops.abs(labels - predictions) < 0.5, "float32")


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"close": close}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=[close])
    return fit(data, model, input_fn)
