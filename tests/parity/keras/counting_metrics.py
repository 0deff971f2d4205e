"""TruePositives, FalseNegatives, SpecificityAtSensitivity."""

import keras
from shared import fit, named, table_schema, yes_or_no

GROUP = "Metrics"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.BinaryCrossentropy()


def custom_model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")])


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {
        "tp": keras.metrics.TruePositives(thresholds=0.5),
        "fn": keras.metrics.FalseNegatives(thresholds=0.5),
        "specificity": keras.metrics.SpecificityAtSensitivity(0.5),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
