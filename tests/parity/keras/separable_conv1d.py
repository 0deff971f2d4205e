"""SeparableConv1D with a dilation rate."""

import keras
from keras import layers
from shared import fit, series, series_schema

GROUP = "Convolutions and pooling"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            layers.SeparableConv1D(6, 3, dilation_rate=2, padding="same", activation="relu"),
            layers.SeparableConv1D(4, 3, depth_multiplier=2, padding="same"),
            layers.SeparableConv1D(4, 2, strides=2, activation="relu", use_bias=False),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
