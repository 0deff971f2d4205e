"""A normalizing flow: affine coupling of halves (`ops.hsplit`), trained by its likelihood."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, numbers


class Coupling(layers.Layer):
    def __init__(self, units=8, **options):
        super().__init__(**options)
        self.hidden = layers.Dense(units, activation="relu")
        self.shift = layers.Dense(4)
        self.log_scale = layers.Dense(4, activation="tanh", kernel_initializer="zeros")

    def call(self, x):
        kept, moved = ops.hsplit(x, 2)
        hidden = self.hidden(kept)
        log_scale = self.log_scale(hidden)
        moved = moved * ops.exp(log_scale) + self.shift(hidden)
        return ops.hstack([moved, kept]), ops.sum(log_scale, axis=1, keepdims=True)


def loss(labels, predictions):
    return -predictions


def custom_model():
    inputs = keras.Input((8,))
    x, log_det = inputs, 0.0
    for _ in range(3):
        x, more = Coupling()(x)
        log_det = log_det + more
    likelihood = -0.5 * ops.sum(ops.square(x) + ops.log(2 * 3.14159), axis=1, keepdims=True)
    return keras.Model(inputs, likelihood + log_det)


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
