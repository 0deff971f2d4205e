"""A model that overrides `trainable_weights`, to train only its head."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom layers"

data_schema, input_fn = table_schema, numbers

loss = keras.losses.MeanSquaredError()


class HeadOnly(keras.Model):
    def __init__(self):
        super().__init__()
        self.a = keras.layers.Dense(6, activation="tanh")
        self.b = keras.layers.Dense(1)

    def call(self, x):
        return self.b(self.a(x))

    @property
    def trainable_weights(self):
        return self.b.trainable_weights if self.built else []


def custom_model():
    model = HeadOnly()
    model(keras.ops.zeros((1, 8)))
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
