"""A weight that is redrawn at random in `call`, every four steps."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
EXPECT = {
    "one process": "differs: random draws are a function of (seed, step, worker)",
    "resumed": "differs: random draws are a function of (seed, step, worker)",
    "workers": "refused: each worker would draw another value",
}
REFUSAL = "is drawn at random"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class RandomFeatures(layers.Layer):
    def build(self, shape):
        self.seeds = keras.random.SeedGenerator(1)
        self.calls = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls"
        )
        self.projection = self.add_weight(
            shape=(8, 8), initializer="orthogonal", trainable=False, name="projection"
        )

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
            drawn, _ = ops.qr(keras.random.normal((8, 8), seed=self.seeds))
            is_due = ops.equal(self.calls.value % 4, 0)
            self.projection.assign(ops.where(is_due, drawn, self.projection.value))
        return ops.cos(x @ self.projection)


def custom_model():
    return keras.Sequential([keras.Input((8,)), RandomFeatures(), layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
