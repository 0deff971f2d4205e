"""A Sequential model without an Input, built by its first batch, with an adapted layer."""

import keras
import numpy as np
from keras import layers
from shared import fit, numbers, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    normalization = layers.Normalization()
    normalization.adapt(np.linspace(-3.0, 4.0, 320, dtype=np.float32).reshape(40, 8))
    return keras.Sequential(
        [normalization, layers.Dense(6, activation="tanh"), layers.LayerNormalization(),
         layers.Dense(1)]
    )  # fmt: skip


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
