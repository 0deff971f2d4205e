"""A callback that freezes a BatchNormalization in the second epoch."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Callbacks"
EXPECT = {
    "two workers": "differs: each worker normalizes with the statistics of its own minibatch",
}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Freeze(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[1].trainable = False


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Freeze()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
