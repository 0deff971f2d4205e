"""`tf.custom_gradient`, `stop_gradient`."""

import keras
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Custom training"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


@tf.custom_gradient
def straight_through(x):
    return tf.sign(x), lambda upstream: upstream * 0.5


class Signs(keras.layers.Layer):
    def call(self, x):
        return straight_through(x) + keras.ops.stop_gradient(x)


def custom_model():
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(6), Signs(), keras.layers.Dense(1)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
