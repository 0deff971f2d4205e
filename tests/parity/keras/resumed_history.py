"""A callback that reads `model.history` and the optimizer's iterations."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Plateau(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        losses = self.model.history.history.get("val_loss", [])
        steps = int(self.model.optimizer.iterations)
        self.model.optimizer.learning_rate.assign(
            0.1 / (1 + len(losses) + steps / 18 + sum(losses))
        )


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Plateau()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
