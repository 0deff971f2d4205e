"""An integer weight that each batch overwrites: the number of tokens of the last batch."""

import keras
from keras import layers, ops
from shared import fit, tokens, tokens_schema

GROUP = "Custom layers"
EXPECT = {"workers": "refused: the change of the weight depends on its value"}
REFUSAL = "depends on its value"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


class LastBatch(layers.Layer):
    def build(self, shape):
        self.num_tokens = self.add_weight(
            shape=(), dtype="int64", initializer="zeros", trainable=False, name="num_tokens"
        )

    def call(self, tokens, training=False):
        if training:
            self.num_tokens.assign(ops.cast(ops.count_nonzero(tokens), "int64"))
        return tokens


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            LastBatch(),
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
