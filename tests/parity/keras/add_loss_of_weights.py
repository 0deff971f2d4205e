"""`add_loss` of the weights."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Regularization"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Shrinking(keras.layers.Dense):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.sum(keras.ops.square(self.kernel)))
        return super().call(x)


def custom_model():
    return keras.Sequential([keras.Input((8,)), Shrinking(6), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
