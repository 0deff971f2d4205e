"""A layer with an integer weight that counts tokens in training (`ops.count_nonzero`)."""

import keras
from keras import layers, ops
from shared import fit, tokens, tokens_schema

GROUP = "Custom layers"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


class CountTokens(layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(
            shape=(), dtype="int64", initializer="zeros", trainable=False, name="seen"
        )

    def call(self, tokens, training=False):
        if training:
            self.seen.assign_add(ops.cast(ops.count_nonzero(tokens), "int64"))
        return tokens


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            CountTokens(),
            layers.Embedding(20, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
