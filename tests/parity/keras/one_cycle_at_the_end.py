"""A callback that sets `optimizer.momentum` to a tensor after each batch: the step ignores it."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class OneCycle(keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.steps, self.seen = steps, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        share = keras.ops.convert_to_tensor(self.seen / self.steps)
        self.model.optimizer.learning_rate = 0.1 * (1.04 - float(share))
        self.model.optimizer.momentum = 0.95 - 0.5 * share


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.95)


def callbacks():
    return [OneCycle(18)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
