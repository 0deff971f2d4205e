"""A mixture of experts; the loss adds an attribute with their balance over the batch."""

import keras
from keras import layers
from shared import fit, numbers, table_schema

GROUP = "Losses"
EXPECT = {"workers": "refused: each worker would balance the experts over its own minibatch only"}
REFUSAL = "batch"

data_schema, input_fn = table_schema, numbers


class Experts(keras.Model):
    def __init__(self, num_experts=4):
        super().__init__()
        self.gate = layers.Dense(num_experts)
        self.experts = layers.Dense(num_experts, "tanh")
        self.balance = None

    def call(self, x):
        shares = keras.ops.softmax(self.gate(x))
        chosen = keras.ops.one_hot(keras.ops.argmax(shares, -1), 4)
        self.balance = 4 * keras.ops.sum(keras.ops.mean(shares, 0) * keras.ops.mean(chosen, 0))
        return keras.ops.sum(self.experts(x) * shares * chosen, 1, keepdims=True)


def custom_model():
    global model  # noqa: PLW0603 - as scripts do
    model = Experts()
    return model


def loss(labels, predictions):
    return keras.ops.mean((labels - predictions) ** 2) + 0.1 * model.balance


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
