"""SparseCategoricalCrossentropy."""

import keras
from shared import classes, fit, mlp, named, table_schema

GROUP = "Losses"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
