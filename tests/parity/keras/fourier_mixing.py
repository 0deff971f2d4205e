"""FNet: `ops.fft2` mixes the embeddings of tokens and positions."""

import keras
from keras import layers, ops
from shared import fit, tokens, tokens_schema

GROUP = "Models"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


class FNetEncoder(layers.Layer):
    def __init__(self, width, hidden, **options):
        super().__init__(**options)
        self.supports_masking = True
        self.dense = keras.Sequential(
            [layers.Dense(hidden, activation="relu"), layers.Dense(width)]
        )
        self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, x):
        real, _ = ops.fft2((x, ops.zeros_like(x)))
        x = self.first(x + real)
        return self.second(x + self.dense(x))


class PositionalEmbedding(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.tokens, self.positions = layers.Embedding(20, 6), layers.Embedding(10, 6)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(ops.shape(x)[-1]))

    def compute_mask(self, x, mask=None):
        return ops.not_equal(x, 0)


def custom_model():
    inputs = keras.Input((10,), dtype="int64")
    x = FNetEncoder(6, 12)(PositionalEmbedding()(inputs))
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
