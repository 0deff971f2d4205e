"""A callback that sets `optimizer.momentum` for each batch: the compiled step ignores it."""

import keras
import numpy as np
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class OneCycle(keras.callbacks.Callback):
    def __init__(self, highest, steps):
        super().__init__()
        self.highest, self.steps, self.seen = highest, steps, 0

    def on_train_batch_begin(self, batch, logs=None):
        share = 0.5 - 0.5 * np.cos(2.0 * np.pi * self.seen / self.steps)
        self.model.optimizer.learning_rate = self.highest * (0.04 + 0.96 * share)
        self.model.optimizer.momentum = 0.95 - 0.5 * share

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.95)


def callbacks():
    return [OneCycle(0.1, 18)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
