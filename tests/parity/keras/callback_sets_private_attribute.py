"""A callback that sets a private attribute of a layer after the first epoch."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Scale(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self._factor = 1.0

    def call(self, x):
        return x * self._factor


class Anneal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        # A compiled step does not see it, in `fit` as here.
        self.model.layers[1]._factor = 1.0 + 0.5 * epoch


def callbacks():
    return [Anneal()]


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            Scale(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
