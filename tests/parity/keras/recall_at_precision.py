"""PrecisionAtRecall, RecallAtPrecision, SensitivityAtSpecificity, SpecificityAtSensitivity."""

import keras
from shared import fit, named, table_schema, yes_or_no

GROUP = "Metrics"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.BinaryCrossentropy()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.3)


def eval_metrics_fn():
    return {
        "precision": keras.metrics.PrecisionAtRecall(0.7),
        "recall": keras.metrics.RecallAtPrecision(0.6, num_thresholds=50),
        "sensitivity": keras.metrics.SensitivityAtSpecificity(0.5),
        "specificity": keras.metrics.SpecificityAtSensitivity(0.5),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
