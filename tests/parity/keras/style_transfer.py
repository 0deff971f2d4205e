"""Style transfer: the trained weight is a picture; Gram matrices, and total variation."""

import keras
import numpy as np
from keras import ops
from shared import fit, image_schema, images

GROUP = "Models"

data_schema = image_schema


def input_fn(records):
    x, _ = images(records)
    return x, np.zeros((len(x), 1), np.float32)


class Painted(keras.layers.Layer):
    """Compares a picture with those of the batch."""

    def __init__(self):
        super().__init__()
        self.features = keras.layers.Conv2D(
            4,
            3,
            kernel_initializer=keras.initializers.RandomNormal(0.0, 0.3, seed=3),
            trainable=False,
        )

    def build(self, shape):
        self.picture = self.add_weight(
            shape=(1, 8, 8, 2), initializer=keras.initializers.RandomUniform(0, 1, seed=2)
        )
        self.features.build(shape)

    def gram(self, x):
        flat = ops.reshape(self.features(x), (-1, 36, 4))
        return ops.matmul(ops.transpose(flat, (0, 2, 1)), flat) / 36

    def call(self, x):
        content = ops.mean(
            ops.square(self.features(self.picture) - self.features(x)), axis=(1, 2, 3)
        )
        style = ops.sum(ops.square(self.gram(self.picture) - self.gram(x)), axis=(1, 2))
        across = ops.square(self.picture[:, :, 1:] - self.picture[:, :, :-1])
        down = ops.square(self.picture[:, 1:] - self.picture[:, :-1])
        self.add_loss(0.01 * (ops.sum(across) + ops.sum(down)))
        return ops.expand_dims(content + style, 1)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    return keras.Model(inputs, Painted()(inputs))


def loss(labels, predictions):
    return ops.mean(predictions - labels)


def optimizer():
    rates = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=5, decay_rate=0.96)
    return keras.optimizers.SGD(rates)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
