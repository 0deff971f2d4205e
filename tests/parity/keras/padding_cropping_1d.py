"""ZeroPadding1D, Cropping1D: causal convolutions, and a skip connection."""

import keras
from keras import layers
from shared import fit, series, series_schema

GROUP = "Convolutions and pooling"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((6, 3))
    x = layers.ZeroPadding1D((2, 0))(inputs)
    x = layers.Conv1D(4, 3, activation="relu")(x)
    deep = layers.Conv1D(4, 3)(x)
    x = layers.Add()([deep, layers.Cropping1D((2, 0))(x)])
    x = layers.UpSampling1D(2)(x)
    x = layers.AveragePooling1D(2)(layers.Cropping1D(1)(x))
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
