"""Subclass of keras.Model."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(6, activation="tanh")
        self.head = keras.layers.Dense(1)

    def call(self, x, training=False):
        hidden = self.hidden(x)
        return self.head(hidden * 1.5 if training else hidden)


def custom_model():
    return Net()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
