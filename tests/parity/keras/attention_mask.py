"""Attention over an embedding, with a mask."""

import keras
from shared import fit, tokens, tokens_schema

GROUP = "Attention"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((10,), dtype="int64")
    x = keras.layers.Embedding(20, 4, mask_zero=True)(inputs)
    x = keras.layers.MultiHeadAttention(2, 4)(x, x)
    x = keras.layers.Attention()([x, x])
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
