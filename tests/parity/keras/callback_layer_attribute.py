"""A callback that sets an attribute of a layer, which `call` reads."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Callbacks"
EXPECT = (
    "refused: the step is compiled for the model as the file creates it; make the attribute a "
    "weight of the layer"
)
REFUSAL = r"on_epoch_begin\(\) changes factor of sequential/scale"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Scale(keras.layers.Layer):
    factor = 1.0

    def call(self, x, training=False):
        return x * self.factor if training else x


class Anneal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.layers[1].factor = 1.5 + 0.5 * epoch


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            Scale(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Anneal()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
