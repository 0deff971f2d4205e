"""A callback that adds noise to weights, drawn from its own SeedGenerator."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Shake(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(42)

    def on_epoch_end(self, epoch, logs=None):
        kernel = self.model.layers[-1].kernel
        kernel.assign_add(0.1 * keras.random.normal(kernel.shape, seed=self.seed_generator))


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Shake()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
