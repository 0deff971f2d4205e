"""A position in a ring buffer of examples: `(pointer + size of the batch) % 13`."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
EXPECT = {"workers": "refused: the change of the weight depends on its value"}
REFUSAL = "depends on its value"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Ring(layers.Layer):
    def __init__(self, size=13):
        super().__init__()
        self.size = size

    def build(self, shape):
        self.pointer = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="pointer"
        )

    def call(self, x, training=False):
        if training:
            self.pointer.assign((self.pointer + ops.shape(x)[0]) % self.size)
        return x


def custom_model():
    return keras.Sequential([keras.Input((8,)), Ring(), layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
