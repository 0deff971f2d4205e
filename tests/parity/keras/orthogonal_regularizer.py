"""PointNet: a T-net whose matrix a custom regularizer keeps orthogonal, and Dot."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, series, series_schema

GROUP = "Regularization"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


@keras.saving.register_keras_serializable("parity")
class Orthogonal(keras.regularizers.Regularizer):
    def __init__(self, size, strength=0.01):
        self.size, self.strength = size, strength

    def __call__(self, x):
        x = ops.reshape(x, (-1, self.size, self.size))
        product = ops.einsum("bij,bkj->bik", x, x)
        return ops.sum(self.strength * ops.square(product - ops.eye(self.size)))

    def get_config(self):
        return {"size": self.size, "strength": self.strength}


def turned(x, size):
    hidden = layers.Conv1D(6, 1, activation="relu")(x)
    hidden = layers.GlobalMaxPooling1D()(hidden)
    matrix = layers.Dense(
        size * size,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(np.eye(size).ravel()),
        activity_regularizer=Orthogonal(size),
    )(hidden)
    return layers.Dot(axes=(2, 1))([x, layers.Reshape((size, size))(matrix)])


def custom_model():
    inputs = keras.Input((6, 3))
    x = layers.Conv1D(4, 1, activation="tanh")(turned(inputs, 3))
    x = layers.GlobalMaxPooling1D()(layers.Conv1D(8, 1)(turned(x, 4)))
    return keras.Model(inputs, layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
