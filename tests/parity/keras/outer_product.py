"""`ops.cross`, `ops.outer` and `ops.vdot` in layers: normals, a kernel of rank one, its norm."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Normals(layers.Layer):
    """The directions of two vectors, and the normal of their plane."""

    def call(self, x):
        one, other = x[:, :3], x[:, 3:6]
        return ops.concatenate([x, ops.cross(one, other)], axis=-1)


class RankOne(layers.Layer):
    """A dense layer whose kernel is the outer product of two vectors."""

    def __init__(self, units, penalty=0.01):
        super().__init__()
        self.units, self.penalty = units, penalty

    def build(self, input_shape):
        self.left = self.add_weight(shape=(input_shape[-1],), name="left")
        self.right = self.add_weight(shape=(self.units,), name="right")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, x):
        kernel = ops.outer(self.left, self.right)
        self.add_loss(self.penalty * ops.vdot(kernel, kernel))
        return ops.matmul(x, kernel) + self.bias


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            Normals(),
            RankOne(6),
            layers.Activation("tanh"),
            layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
