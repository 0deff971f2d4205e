"""A warm-up by examples: a counter that stops at a limit, `minimum(seen + batch, 45)`."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
EXPECT = {"workers": "refused: the change of the weight depends on its value"}
REFUSAL = "depends on its value"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class WarmUp(layers.Layer):
    """Lets features in with the examples that it has seen."""

    def __init__(self, num_examples=45):
        super().__init__()
        self.num_examples = num_examples

    def build(self, shape):
        self.seen = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="seen"
        )

    def call(self, x, training=False):
        share = ops.cast(self.seen, x.dtype) / self.num_examples
        if training:
            self.seen.assign(ops.minimum(self.seen + ops.shape(x)[0], self.num_examples))
        return x * share


def custom_model():
    return keras.Sequential([keras.Input((8,)), WarmUp(), layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
