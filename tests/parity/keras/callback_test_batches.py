"""A callback with methods for the batches of a validation."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = {
    "two workers": "refused: workers share the batches of an evaluation; use `on_test_end`",
}
REFUSAL = r"Follow has on_test_batch_end\(\)"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Follow(keras.callbacks.Callback):
    """Lowers the rate by how many batches were measured, and what the last one came to."""

    def on_train_begin(self, logs=None):
        self.batches, self.best = 0, 1e9

    def on_test_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_test_end(self, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * (1 - 0.05 * self.batches))
        if logs["loss"] > self.best:
            rate.assign(rate * 0.5)
        self.best = min(self.best, float(logs["loss"]))


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.2)


def callbacks():
    return [Follow()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
