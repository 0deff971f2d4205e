"""`tf.function`, `tf.cond` and `tf.while_loop` in a layer."""

import keras
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = {
    "two workers": "refused: the layer uses the mean of the batch, and each worker sees its own "
    "minibatch"
}
REFUSAL = "other examples of its batch"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Looping(keras.layers.Layer):
    @tf.function
    def call(self, x):
        for _ in tf.range(3):
            x = tf.cond(tf.reduce_mean(x) > 0.0, lambda x=x: x * 0.9, lambda x=x: x * 0.8)
        return x


def custom_model():
    return keras.Sequential([keras.Input((8,)), Looping(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
