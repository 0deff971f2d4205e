"""A layer that normalizes its gradient over the batch."""

import keras
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Gradients"
EXPECT = {
    "two workers": "differs: the gradient is divided by a norm over the batch, and each worker "
    "sees its own minibatch"
}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


@tf.custom_gradient
def normalized(x):
    def gradient(upstream):
        return upstream / (tf.norm(upstream) + 1e-6)

    return tf.identity(x), gradient


class Normalized(keras.layers.Layer):
    def call(self, x):
        return normalized(x)


def custom_model():
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(6), Normalized(), keras.layers.Dense(1)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
