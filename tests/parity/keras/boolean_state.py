"""A boolean weight."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Flagged(keras.layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(
            name="seen", shape=(), dtype="bool", initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.seen.assign(True)
        return x


def custom_model():
    return keras.Sequential([keras.Input((8,)), Flagged(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
