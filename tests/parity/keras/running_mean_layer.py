"""A custom layer with a running mean."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
EXPECT = {
    "two workers": "differs: within a step, each worker uses the mean after its own minibatch only",
}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Centred(keras.layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False, name="mean"
        )

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
        return x - self.mean


def custom_model():
    return keras.Sequential([keras.Input((8,)), Centred(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
