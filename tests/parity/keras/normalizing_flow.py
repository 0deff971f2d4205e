"""A normalizing flow (RealNVP): coupling layers, and the log determinant in `compute_loss`."""

import keras
import numpy as np
from keras import ops
from shared import fit, numbers, table_schema

GROUP = "Custom training"

data_schema = table_schema


def input_fn(records):
    x, _ = numbers(records)
    return x[:, :2], np.zeros(len(x), np.float32)


def coupling():
    inputs = keras.Input((2,))
    regularizer = keras.regularizers.l2(0.01)
    shift = scale = inputs
    for _ in range(2):
        shift = keras.layers.Dense(6, activation="relu", kernel_regularizer=regularizer)(shift)
        scale = keras.layers.Dense(6, activation="relu", kernel_regularizer=regularizer)(scale)
    shift = keras.layers.Dense(2, kernel_regularizer=regularizer)(shift)
    scale = keras.layers.Dense(2, activation="tanh", kernel_regularizer=regularizer)(scale)
    return keras.Model(inputs, [scale, shift])


class RealNVP(keras.Model):
    def __init__(self, num_coupling_layers=2):
        super().__init__()
        self.masks = np.array([[0, 1], [1, 0]] * (num_coupling_layers // 2), "float32")
        self.layers_list = [coupling() for _ in range(num_coupling_layers)]

    def call(self, x, training=True):
        log_determinant = 0
        direction = -1 if training else 1
        for i in range(len(self.layers_list))[::direction]:
            masked = x * self.masks[i]
            reversed_mask = 1 - self.masks[i]
            scale, shift = self.layers_list[i](masked)
            scale, shift = scale * reversed_mask, shift * reversed_mask
            gate = (direction - 1) / 2
            x = (
                reversed_mask
                * (x * ops.exp(direction * scale) + direction * shift * ops.exp(gate * scale))
                + masked
            )
            log_determinant += gate * ops.sum(scale, axis=1)
        return x, log_determinant

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        latent, log_determinant = y_pred
        log_density = -0.5 * ops.sum(ops.square(latent), axis=1) - np.log(2 * np.pi)
        return -ops.mean(log_density + log_determinant) + sum(self.losses)


def custom_model():
    return RealNVP()


def optimizer():
    return keras.optimizers.Adam(0.005)


def plain(data):
    model = custom_model()
    model.compile(optimizer())
    return fit(data, model, input_fn)
