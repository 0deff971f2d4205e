"""A callback that changes an attribute of a layer before the first batch of a validation."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Callbacks"
EXPECT = {
    "two workers": "refused: workers share the batches of an evaluation; use `on_test_end`",
}
REFUSAL = r"Sharpens has on_test_batch_begin\(\)"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Temperature(keras.layers.Layer):
    """Divides by an attribute, which a compiled step reads only once."""

    def __init__(self, **options):
        super().__init__(**options)
        self.temperature = 1.0

    def call(self, inputs):
        return inputs / self.temperature


class Sharpens(keras.callbacks.Callback):
    def on_test_batch_begin(self, batch, logs=None):
        self.model.get_layer("temperature").temperature = 0.5


def custom_model():
    return keras.Sequential(
        [
            keras.layers.Dense(8, activation="tanh"),
            Temperature(name="temperature"),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Sharpens()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
