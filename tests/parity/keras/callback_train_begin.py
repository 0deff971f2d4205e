"""A callback that sets the learning rate and weights in `on_train_begin`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Begin(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate.assign(0.2)
        kernel = self.model.layers[0].kernel
        kernel.assign(kernel * 0.5)

    def on_train_batch_end(self, batch, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 0.9)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Begin()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
