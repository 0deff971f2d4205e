"""A callback that stops within an epoch."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Stop(keras.callbacks.Callback):
    """Ends the training after thirteen batches."""

    def on_train_begin(self, logs=None):
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen >= 13:
            self.model.stop_training = True


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Stop()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
