"""`np.random` within `tf.numpy_function` or `tf.py_function`."""

import keras
import numpy as np
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Randomness in layers"
EXPECT = "refused: TensorFlow does not say which step it runs the function for; use tf.random"
REFUSAL = "tf.numpy_function"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def noise(x):
    return x + np.float32(np.random.normal(size=x.shape))  # noqa: NPY002


class Noisy(keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            return x
        return tf.ensure_shape(tf.numpy_function(noise, [x], tf.float32), x.shape)


def custom_model():
    return keras.Sequential([keras.Input((8,)), Noisy(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
