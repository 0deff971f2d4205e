"""L1L2 on kernels, recurrent kernels, embeddings and activities."""

import keras
from keras import layers, regularizers
from shared import fit, tokens, tokens_schema

GROUP = "Regularization"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((10,), dtype="int64")
    x = layers.Embedding(20, 4, embeddings_regularizer=regularizers.L1L2(l2=0.02))(inputs)
    x = layers.LSTM(
        4,
        kernel_regularizer=regularizers.L1L2(l1=0.001, l2=0.01),
        recurrent_regularizer=regularizers.L1L2(l1=0.002),
        activity_regularizer=regularizers.L1L2(l1=0.01, l2=0.03),
    )(x)
    x = layers.Dense(4, activation="tanh", bias_regularizer=regularizers.L1L2(0.01, 0.02))(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
