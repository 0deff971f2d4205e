"""`steps_per_execution` with a callback that counts batches."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: `fit` calls it once for several batches; remove `steps_per_execution`"
REFUSAL = r"Halve has on_train_batch_end\(\)"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Halve(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * 0.8)


def custom_model():
    model = mlp()
    model.compile(steps_per_execution=4)
    return model


def optimizer():
    return keras.optimizers.SGD(0.2)


def callbacks():
    return [Halve()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, steps_per_execution=4)
    return fit(data, model, input_fn, callbacks())
