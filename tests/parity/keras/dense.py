"""Dense layers in a Sequential model."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, numbers


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )


def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), "mse", metrics=[keras.metrics.MeanAbsoluteError(name="mae")])
    return fit(data, model, input_fn)
