"""`ops.count_nonzero` in a layer: the mean over unmasked tokens, and their number."""

import keras
from keras import layers, ops
from shared import fit, tokens, tokens_schema

GROUP = "Layers"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


class MeanOfTokens(layers.Layer):
    def __init__(self, vocabulary, units):
        super().__init__()
        self.embedding = layers.Embedding(vocabulary, units)

    def call(self, tokens):
        count = ops.cast(ops.count_nonzero(tokens, axis=1), self.compute_dtype)[:, None]
        there = ops.cast(ops.not_equal(tokens, 0), self.compute_dtype)[..., None]
        mean = ops.sum(there * self.embedding(tokens), axis=1) / ops.maximum(count, 1.0)
        return ops.concatenate([mean, ops.log1p(count)], axis=1)


def custom_model():
    return keras.Sequential(
        [keras.Input((10,), dtype="int64"), MeanOfTokens(20, 4), layers.Dense(1)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
