"""A callback that keeps arrays."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Slowest(keras.callbacks.Callback):
    """Pulls the weights halfway back to those of the epoch before."""

    def on_train_begin(self, logs=None):
        self.before = self.model.get_weights()

    def on_epoch_end(self, epoch, logs=None):
        weights = [(a + b) / 2 for a, b in zip(self.before, self.model.get_weights(), strict=True)]
        self.model.set_weights(weights)
        self.before = weights


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Slowest()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
