"""The Softmax layer with a mask: attention pooling over unmasked tokens."""

import keras
from keras import layers
from shared import fit, tokens, tokens_schema

GROUP = "Attention"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((10,), dtype="int64")
    x = layers.Embedding(20, 6)(inputs)
    scores = layers.Reshape((10,))(layers.Dense(1)(x))
    shares = layers.Softmax()(scores, mask=keras.ops.not_equal(inputs, 0))
    pooled = layers.Dot(axes=(1, 1))([shares, x])
    return keras.Model(inputs, layers.Dense(1)(pooled))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
