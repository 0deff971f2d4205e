"""A layer whose `call` shrinks its kernel by a factor in each training step."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Shrinking(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units, activation="tanh")
        self.num_calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def build(self, shape):
        self.dense.build(shape)
        super().build(shape)

    def call(self, x, training=False):
        if training:
            self.dense.kernel.assign(self.dense.kernel * 0.98)
            self.num_calls.assign_add(1.0)
        return self.dense(x)


def custom_model():
    return keras.Sequential([keras.Input((8,)), Shrinking(6), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
