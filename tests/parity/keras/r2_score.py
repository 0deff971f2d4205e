"""R2Score."""

import keras
from shared import fit, mlp, named, numbers, table_schema

GROUP = "Metrics"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {
        "r2": keras.metrics.R2Score(),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
