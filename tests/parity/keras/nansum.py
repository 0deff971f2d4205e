"""`ops.nansum` in a layer: a sum over measurements, some of which are NaN."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Layers"

data_schema = table_schema
loss = keras.losses.MeanSquaredError()


def input_fn(records):
    x, y = numbers(records)
    return np.where(x > 1, np.float32(np.nan), x), y


class Additive(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 6), name="kernel")
        self.bias = self.add_weight(shape=(6,), initializer="zeros", name="bias")

    def call(self, x):
        return ops.tanh(ops.nansum(x[..., None] * self.kernel, axis=-2) + self.bias)


def custom_model():
    inputs = keras.Input((8,))
    known = 1.0 - ops.cast(ops.isnan(inputs), "float32")
    x = layers.Concatenate()([Additive()(ops.nan_to_num(inputs)), known])
    total = ops.nansum(inputs, axis=-1, keepdims=True)
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([x, total])))


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
