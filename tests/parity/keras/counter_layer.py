"""A layer that counts its steps and examples."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Counting(keras.layers.Layer):
    def build(self, shape):
        whole = {"shape": (), "dtype": "int64", "initializer": "zeros", "trainable": False}
        self.steps = self.add_weight(name="steps", **whole)
        self.examples = self.add_weight(name="examples", **whole)

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1)
            self.examples.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "int64"))
        return x


def custom_model():
    return keras.Sequential([keras.Input((8,)), Counting(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
