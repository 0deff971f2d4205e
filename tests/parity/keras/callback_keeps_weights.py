"""A callback that looks for weights and the rate at the first batch, and keeps them, also by id."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Averages(keras.callbacks.Callback):
    """Pulls kernels to their averages, with a falling rate and method."""

    def __init__(self):
        super().__init__()
        self.kernels, self.averages = None, {}

    def on_train_batch_end(self, batch, logs=None):
        if self.kernels is None:
            self.kernels = [
                each for each in self.model.trainable_variables if "kernel" in each.path
            ]
            self.rate, self.pull = self.model.optimizer.learning_rate, self.weakly
        for kernel in self.kernels:
            last = self.averages.get(id(kernel), kernel.numpy())
            self.averages[id(kernel)] = 0.9 * last + 0.1 * kernel.numpy()
            self.pull(kernel)
        self.rate.assign(0.98 * self.rate)

    def weakly(self, kernel):
        kernel.assign(0.9 * kernel + 0.1 * self.averages[id(kernel)])

    def strongly(self, kernel):
        kernel.assign(0.5 * kernel + 0.5 * self.averages[id(kernel)])

    def on_epoch_end(self, epoch, logs=None):
        self.pull = self.strongly


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Averages()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
