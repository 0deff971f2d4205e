"""A callback that lowers `optimizer.weight_decay` later: the compiled step does not see it."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Decay(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.weight_decay = 0.3 / (epoch + 1)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.AdamW(0.05, weight_decay=0.3)


def callbacks():
    return [Decay()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
