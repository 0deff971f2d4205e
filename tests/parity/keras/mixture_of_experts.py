"""A mixture of experts with an `ops.top_k` gate, and a loss for their balance over the batch."""

import keras
from keras import ops
from shared import classes, fit, table_schema

GROUP = "Custom layers"
EXPECT = {"workers": "refused: each worker would balance the experts over its own minibatch only"}
REFUSAL = r"the loss that layers add of \d examples is"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Experts(keras.layers.Layer):
    def __init__(self, units, num_experts=4, k=2, **more):
        super().__init__(**more)
        self.units, self.num_experts, self.k = units, num_experts, k
        self.gate = keras.layers.Dense(num_experts, use_bias=False)

    def build(self, shape):
        self.gate.build(shape)
        self.kernel = self.add_weight((self.num_experts, shape[-1], self.units), name="kernel")
        self.bias = self.add_weight((self.num_experts, self.units), "zeros", name="bias")

    def call(self, x):
        shares = ops.softmax(self.gate(x))
        best, chosen = ops.top_k(shares, self.k)
        best = best / ops.sum(best, axis=-1, keepdims=True)
        one_hot = ops.one_hot(chosen, self.num_experts)
        # Switch Transformer's balance: how often an expert is first, times its mean share.
        often = ops.mean(one_hot[:, 0], axis=0)
        self.add_loss(0.5 * self.num_experts * ops.sum(often * ops.mean(shares, axis=0)))
        weights = ops.sum(one_hot * best[..., None], axis=1)
        outputs = ops.einsum("bi,eio->beo", x, self.kernel) + self.bias
        return ops.einsum("be,beo->bo", weights, ops.relu(outputs))


def custom_model():
    return keras.Sequential([keras.Input((8,)), Experts(6), keras.layers.Dense(3)])


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
