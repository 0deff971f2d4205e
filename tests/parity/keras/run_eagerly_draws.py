"""`np.random` in `call` with `run_eagerly=True`."""

import keras
import numpy as np
from shared import fit, numbers, table_schema

GROUP = "Randomness in layers"
EXPECT = (
    "refused: steps are always compiled, and a compiled step would draw only once; use tf.random"
)
REFUSAL = "run_eagerly"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Noisy(keras.layers.Layer):
    def call(self, x, training=False):
        return x + np.float32(np.random.normal(size=x.shape)) if training else x  # noqa: NPY002


def custom_model():
    model = keras.Sequential([keras.Input((8,)), Noisy(), keras.layers.Dense(1)])
    model.compile(run_eagerly=True)
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, run_eagerly=True)
    return fit(data, model, input_fn)
