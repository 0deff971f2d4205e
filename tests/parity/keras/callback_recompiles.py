"""A callback that calls `model.compile` to unfreeze a base."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = "refused: the model file defines the optimizer, and checkpoints hold its state"
REFUSAL = r"model.compile\(\) does not work in a callback"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Unfreeze(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].trainable = True
            self.model.compile(keras.optimizers.SGD(0.01), "mse")
            self.model.make_train_function()


def custom_model():
    model = mlp()
    model.layers[0].trainable = False
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Unfreeze()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
