"""`keras.random` without a SeedGenerator in a layer."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Randomness in layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Noisy(keras.layers.Layer):
    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x)) if training else x


def custom_model():
    return keras.Sequential([keras.Input((8,)), Noisy(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
