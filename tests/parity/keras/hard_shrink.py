"""A sparse activation: `activation="hard_shrink"`, and as a function."""

import keras
from keras import layers
from shared import fit, numbers, table_schema

GROUP = "Layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(12, activation="hard_shrink"),
            layers.Dense(6),
            layers.Activation(lambda x: keras.activations.hard_shrink(x, threshold=0.2)),
            layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}


def plain(data):
    model = custom_model()
    metric = keras.metrics.MeanAbsoluteError(name="mae")
    model.compile(optimizer(), loss, metrics=[metric])
    return fit(data, model, input_fn)
