"""CategoricalCrossentropy with label smoothing."""

import keras
from shared import classes, fit, mlp, named, table_schema

GROUP = "Losses"

loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)


data_schema = table_schema


def input_fn(records):
    x, label = classes(records)
    return x, keras.utils.to_categorical(label, 3)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.CategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
