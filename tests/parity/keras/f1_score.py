"""F1Score, FBetaScore."""

import keras
from shared import classes, fit, named, table_schema

GROUP = "Metrics"

loss = keras.losses.CategoricalCrossentropy()


data_schema = table_schema


def input_fn(records):
    x, label = classes(records)
    return x, keras.utils.to_categorical(label, 3)


def custom_model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, activation="softmax")])


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {
        "f1": keras.metrics.F1Score("macro"),
        "fbeta": keras.metrics.FBetaScore("weighted", beta=2.0),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
