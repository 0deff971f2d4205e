"""A layer that compares the examples of a batch (minibatch standard deviation)."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Layers"
EXPECT = {"workers": "refused: each worker would compare the examples of its own minibatch only"}
REFUSAL = "other examples of its batch"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Deviation(keras.layers.Layer):
    """Adds a feature: how much the examples of the batch differ."""

    def call(self, x):
        spread = keras.ops.mean(keras.ops.std(x, axis=0))
        column = keras.ops.ones_like(x[:, :1]) * spread
        return keras.ops.concatenate([x, column], axis=-1)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            Deviation(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
