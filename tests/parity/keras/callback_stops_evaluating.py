"""A callback that ends a validation early (`model.stop_evaluating`)."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = {
    "two workers": "refused: workers share the batches of an evaluation; use `on_test_end`",
}
REFUSAL = r"Few has on_test_batch_end\(\)"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Few(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        self.model.stop_evaluating = True


def callbacks():
    return [Few()]


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
