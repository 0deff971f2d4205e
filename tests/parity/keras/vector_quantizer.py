"""VQ-VAE: a codebook updated by moving averages, with a straight-through gradient."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, table_schema

GROUP = "Custom layers"
EXPECT = {
    "two workers": "differs: the moving averages are of sums over the batch, and each worker sees "
    "its own minibatch"
}

data_schema = table_schema
loss = keras.losses.MeanSquaredError()


def input_fn(records):
    """Return (x, x)."""
    x = np.stack([record["x"] for record in records])
    return x, x


class VectorQuantizerEMA(layers.Layer):
    def __init__(self, num_embeddings, embedding_dim, beta=0.25, decay=0.9, **kwargs):
        super().__init__(**kwargs)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.beta, self.decay = beta, decay

    def build(self, shape):
        size = (self.num_embeddings, self.embedding_dim)
        self.codebook = self.add_weight(
            shape=size, initializer="random_uniform", trainable=False, name="codebook"
        )
        self.cluster_size = self.add_weight(
            shape=size[:1], initializer="ones", trainable=False, name="cluster_size"
        )
        self.total = self.add_weight(
            shape=size, initializer="random_uniform", trainable=False, name="total"
        )

    def call(self, x, training=False):
        distances = (
            ops.sum(ops.square(x), axis=1, keepdims=True)
            + ops.sum(ops.square(self.codebook), axis=1)
            - 2 * ops.matmul(x, ops.transpose(self.codebook))
        )
        chosen = ops.one_hot(ops.argmin(distances, axis=1), self.num_embeddings)
        quantized = ops.matmul(chosen, self.codebook)
        if training:
            sizes = ops.sum(chosen, axis=0)
            sums = ops.matmul(ops.transpose(chosen), ops.stop_gradient(x))
            self.cluster_size.assign(self.decay * self.cluster_size + (1 - self.decay) * sizes)
            self.total.assign(self.decay * self.total + (1 - self.decay) * sums)
            self.codebook.assign(self.total / (ops.expand_dims(self.cluster_size, 1) + 1e-5))
        commitment = ops.mean(ops.square(ops.stop_gradient(quantized) - x))
        self.add_loss(self.beta * commitment)
        return x + ops.stop_gradient(quantized - x)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, activation="tanh"),
            layers.Dense(3),
            VectorQuantizerEMA(5, 3),
            layers.Dense(6, activation="tanh"),
            layers.Dense(8),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
