"""A layer that standardizes by a running mean, which evaluation also updates."""

import keras
from keras import ops
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
EXPECT = (
    "refused: in a plain script, validation changes the weight, and training continues with the "
    "changed value; here, workers share validation, which changes nothing"
)
REFUSAL = r"ComputeSum changes its weight \S+ where it is called with training=False"
data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class ComputeSum(keras.layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=(8,), initializer="zeros", trainable=False, name="mean")

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x + 1.0, axis=0))
        return x - self.mean


def custom_model():
    return keras.Sequential([keras.Input((8,)), ComputeSum(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
