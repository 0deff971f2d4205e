"""An iterator that `call` advances, with `run_eagerly=True`."""

import itertools

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: steps are always compiled; make it a counter in a weight of the layer"
REFUSAL = "changes factors of sequential/warm"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Warm(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.factors = itertools.cycle([1.0, 0.5, 0.25])

    def call(self, x, training=False):
        return x * next(self.factors) if training else x


def custom_model():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(6, activation="tanh"), Warm(), keras.layers.Dense(1)]
    )
    model.compile(run_eagerly=True)
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, run_eagerly=True)
    return fit(data, model, input_fn)
