"""Complex weights."""

import keras
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Number formats"
EXPECT = {"workers": "refused: workers sum real numbers only"}
REFUSAL = "complex numbers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Waves(keras.layers.Layer):
    def build(self, shape):
        self.phase = self.add_weight(
            shape=shape[-1:], dtype="complex64", initializer="ones", name="phase"
        )

    def call(self, features):
        # 0.1j makes the gradient complex; without it the imaginary parts would stay 0.
        return tf.abs(tf.cast(features, tf.complex64) * self.phase + 0.1j)


def custom_model():
    return keras.Sequential([keras.Input((8,)), Waves(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
