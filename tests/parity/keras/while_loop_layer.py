"""`keras.ops.while_loop` in a layer: adaptive computation time."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Ponder(layers.Layer):
    """Repeats a step for an example until its halting probabilities add up to one."""

    def __init__(self, max_steps=5):
        super().__init__()
        self.max_steps = max_steps

    def build(self, shape):
        self.step = layers.Dense(shape[-1], activation="tanh")
        self.halt = layers.Dense(1, activation="sigmoid")
        self.step.build(shape)
        self.halt.build(shape)

    def call(self, x):
        halted = ops.zeros_like(x[:, :1])

        def unfinished(count, state, result, halted):
            return ops.logical_and(count < self.max_steps, ops.any(halted < 0.99))

        def body(count, state, result, halted):
            state = self.step(state)
            probability = ops.minimum(self.halt(state), 1 - halted)
            return count + 1, state, result + probability * state, halted + probability

        count = ops.convert_to_tensor(0)
        _, _, result, _ = ops.while_loop(unfinished, body, (count, x, ops.zeros_like(x), halted))
        return result


def custom_model():
    return keras.Sequential([keras.Input((8,)), layers.Dense(6), Ponder(), layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
