"""A callback that calls `model.evaluate` on other data."""

import keras
import numpy as np
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = "refused: compute the metric from what `model.predict` returns, or set validation data"
REFUSAL = r"model\.evaluate\(\) does not work in a callback"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()
PROBE = np.linspace(-2.0, 2.0, 88, dtype=np.float32).reshape(11, 8)


class Probing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        measured = self.model.evaluate(PROBE, PROBE[:, :1], verbose=0, return_dict=True)
        self.model.optimizer.learning_rate = 0.1 / (1.0 + measured["loss"] + measured["mae"])


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError(name="mae")}


def callbacks():
    return [Probing()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=list(eval_metrics_fn().values()))
    return fit(data, model, input_fn, callbacks())
