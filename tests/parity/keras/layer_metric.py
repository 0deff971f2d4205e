"""Metrics that a layer updates in `call`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Metrics"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Watched(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")
        self.total = keras.metrics.Sum(name="total")

    def call(self, x, training=False):
        self.size.update_state(keras.ops.abs(x))
        if training:
            self.total.update_state(x)
        return x


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            Watched(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
