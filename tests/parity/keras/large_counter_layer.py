"""A weight that counts above 2^24."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Counting(keras.layers.Layer):
    def build(self, shape):
        self.steps = self.add_weight(
            name="steps",
            shape=(),
            dtype="int64",
            initializer=lambda shape, dtype: keras.ops.full(shape, 2**24 + 1, dtype),
            trainable=False,
        )

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1)
        return x


def custom_model():
    return keras.Sequential([keras.Input((8,)), Counting(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
