"""A layer from Keras' guide (ComputeSum) whose weight changes in each call, also in evaluation."""

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
    def __init__(self, input_dim):
        super().__init__()
        self.total = self.add_weight(
            initializer="zeros", shape=(input_dim,), trainable=False, name="total"
        )

    def call(self, inputs):
        self.total.assign_add(ops.sum(inputs, axis=0))
        return inputs


def custom_model():
    return keras.Sequential([keras.Input((8,)), ComputeSum(8), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
