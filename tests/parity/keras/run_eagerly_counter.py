"""A Python number that `call` increments, with `run_eagerly=True`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: steps are always compiled; make the number a weight of the layer"
REFUSAL = "changes seen of sequential/warm"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Warm(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def call(self, x, training=False):
        if training:
            self.seen += 1
            return x * min(1.0, self.seen / 10)
        return x


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
