"""A perceptual loss of an autoencoder, computed with a frozen network of the file."""

import keras
import numpy as np
from keras import initializers, layers, ops
from shared import fit, image_schema

GROUP = "Losses"

data_schema = image_schema


def extractor():
    inputs = keras.Input((8, 8, 2))
    first = layers.Conv2D(
        4, 3, activation="relu", kernel_initializer=initializers.GlorotUniform(seed=1)
    )(inputs)
    second = layers.Conv2D(
        4, 3, activation="relu", kernel_initializer=initializers.GlorotUniform(seed=2)
    )(first)
    model = keras.Model(inputs, [first, second])
    model.trainable = False
    return model


EXTRACTOR = extractor()


def input_fn(records):
    """Return (image, image)."""
    image = np.stack([record["image"] for record in records])
    return image, image


def loss(labels, predictions):
    """Return the distance of pictures, and of what the extractor finds in them."""
    distance = ops.mean(ops.square(labels - predictions), axis=(1, 2, 3))
    for true, made in zip(EXTRACTOR(labels), EXTRACTOR(predictions), strict=True):
        distance += ops.mean(ops.abs(true - made), axis=(1, 2, 3))
    return distance


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu", name="coder")(inputs)
    x = layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu", name="decoder")(
        x
    )
    return keras.Model(inputs, layers.Conv2D(2, 1, activation="sigmoid", name="image")(x))


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
