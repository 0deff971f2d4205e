"""CustomDense (Keras guide): a model made by `Model.from_config` with `custom_objects`."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class CustomDense(layers.Layer):
    def __init__(self, units=32):
        super().__init__()
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units),
            initializer="random_normal",
            trainable=True,
        )
        self.b = self.add_weight(shape=(self.units,), initializer="random_normal", trainable=True)

    def call(self, inputs):
        return ops.matmul(inputs, self.w) + self.b

    def get_config(self):
        return {"units": self.units}


def custom_model():
    inputs = keras.Input((8,))
    x = layers.Activation("tanh")(CustomDense(10)(inputs))
    outputs = CustomDense(1)(x)
    model = keras.Model(inputs, outputs)
    config = model.get_config()
    return keras.Model.from_config(config, custom_objects={"CustomDense": CustomDense})


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
