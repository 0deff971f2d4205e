"""`keras.ops.custom_gradient`."""

import keras
from keras import ops
from shared import fit, numbers, table_schema

GROUP = "Custom training"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


@ops.custom_gradient
def log1pexp(x):
    e = ops.exp(x)

    def grad(*args, upstream=None):
        if upstream is None:
            (upstream,) = args
        return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))

    return ops.log(1 + e), grad


class Softplus(keras.layers.Layer):
    def call(self, x):
        return log1pexp(x)


def custom_model():
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(6), Softplus(), keras.layers.Dense(1)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
