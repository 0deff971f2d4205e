"""A callback that reads `params` and the logs of a batch."""

import math

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Cosine(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        done = self.seen / (self.params["epochs"] * self.params["steps"])
        rate = 0.05 * (1.0 + math.cos(math.pi * done)) + 0.01 * batch
        self.model.optimizer.learning_rate = rate / (1.0 + logs["loss"])


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError(name="mae")}


def callbacks():
    return [Cosine()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=list(eval_metrics_fn().values()))
    return fit(data, model, input_fn, callbacks())
