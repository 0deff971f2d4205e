"""Experts with a capacity that a whole minibatch reaches, but no half of it can."""

import keras
from keras import ops
from shared import classes, fit, table_schema

GROUP = "Custom layers"
EXPECT = {"two workers": "refused: half of a minibatch never reaches the capacity"}
REFUSAL = "depend on the other examples of its batch"

NUM_EXPERTS, CAPACITY = 3, 5

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Router(keras.layers.Layer):
    def __init__(self, **more):
        super().__init__(**more)
        self.route = keras.layers.Dense(NUM_EXPERTS)
        self.experts = [keras.layers.Dense(6, "relu") for _ in range(NUM_EXPERTS)]

    def build(self, shape):
        for layer in (self.route, *self.experts):
            layer.build(shape)

    def call(self, x):
        shares = ops.softmax(self.route(x))
        chosen = ops.one_hot(ops.argmax(shares, axis=-1), NUM_EXPERTS)
        position = ops.cumsum(chosen, axis=0) * chosen
        served = chosen * ops.cast(position <= CAPACITY, "float32")
        outputs = ops.stack([expert(x) for expert in self.experts], axis=1)
        return ops.einsum("be,beo->bo", shares * served, outputs)


def custom_model():
    return keras.Sequential([keras.Input((8,)), Router(), keras.layers.Dense(3)])


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
