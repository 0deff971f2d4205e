"""A constant weight with -inf (a causal mask)."""

import keras
import numpy as np
from shared import fit, series, series_schema

GROUP = "Custom layers"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


class Causal(keras.layers.Layer):
    def build(self, shape):
        mask = np.triu(np.full((shape[1], shape[1]), -np.inf, "float32"), 1)
        self.mask = self.add_weight(
            name="mask",
            shape=mask.shape,
            initializer=lambda shape, dtype: keras.ops.convert_to_tensor(mask, dtype),
            trainable=False,
        )

    def call(self, x):
        scores = keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))) + self.mask
        return keras.ops.matmul(keras.ops.softmax(scores), x)


def custom_model():
    return keras.Sequential(
        [keras.Input((6, 3)), Causal(), keras.layers.Flatten(), keras.layers.Dense(1)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
