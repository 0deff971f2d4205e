"""A mixture density network: the loss is the negative log-likelihood of Gaussians."""

import math

import keras
from keras import ops
from shared import fit, numbers, table_schema

GROUP = "Losses"

COMPONENTS = 3

data_schema, input_fn = table_schema, numbers


def loss(y_true, y_pred):
    weights, means, deviations = ops.split(y_pred, 3, axis=-1)
    log_weights = ops.log_softmax(weights, axis=-1)
    z = (y_true - means) / deviations
    log_densities = -0.5 * ops.square(z) - ops.log(deviations) - 0.5 * math.log(2 * math.pi)
    return -ops.mean(ops.logsumexp(log_weights + log_densities, axis=-1))


class Mixture(keras.layers.Layer):
    def build(self, shape):
        self.weights_of = keras.layers.Dense(COMPONENTS)
        self.means = keras.layers.Dense(COMPONENTS)
        self.deviations = keras.layers.Dense(COMPONENTS, activation="softplus")
        for layer in (self.weights_of, self.means, self.deviations):
            layer.build(shape)

    def call(self, x):
        return ops.concatenate(
            [self.weights_of(x), self.means(x), self.deviations(x) + 1e-3], axis=-1
        )


def custom_model():
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, activation="tanh"), Mixture()]
    )


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
