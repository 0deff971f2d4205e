"""The convolutional network that published ElasticDL examples train."""

import keras
from pictures import CLASSES, input_fn, loss, optimizer, schema_of

__all__ = ["CLASSES", "SHAPE", "custom_model", "data_schema", "input_fn", "loss", "optimizer"]

SHAPE = (28, 28)


def custom_model():
    inputs = keras.Input(SHAPE, name="image")
    x = keras.layers.Reshape((28, 28, 1))(inputs)
    x = keras.layers.Conv2D(32, 3, activation="relu")(x)
    x = keras.layers.Conv2D(64, 3, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dropout(0.25)(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(x))


def data_schema():
    return schema_of(SHAPE)
