"""A tf.Variable in a layer."""

import keras
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
EXPECT = "refused: a checkpoint holds the weights of the model only; use add_weight"
REFUSAL = r"the variable Warming\.steps changes"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Warming(keras.layers.Layer):
    def build(self, shape):
        self.steps = tf.Variable(0.0, trainable=False)

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1.0)
        return x * tf.minimum(1.0, self.steps / 10.0)


def custom_model():
    return keras.Sequential([keras.Input((8,)), Warming(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
