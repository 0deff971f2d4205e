"""A callback that reads `model.get_metrics_result()`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = "refused: read the logs, which have the loss and the validation metrics"
REFUSAL = r"model\.get_metrics_result\(\) does not work in a callback"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Reading(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.02 * float(self.model.get_metrics_result()["loss"])


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Reading()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
