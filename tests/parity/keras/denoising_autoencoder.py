"""A convolutional autoencoder for denoising (Keras example): the input function adds noise."""

import keras
import numpy as np
from keras import layers
from shared import fit, image_schema, images

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, batch), not of a generator's state"

data_schema = image_schema
loss = "binary_crossentropy"


def preprocess(array):
    return np.clip(array.astype("float32"), 0.0, 1.0)


def noise(array):
    noise_factor = 0.4
    noisy_array = array + noise_factor * np.random.normal(  # noqa: NPY002 - as the example does
        loc=0.0, scale=1.0, size=array.shape
    )
    return np.clip(noisy_array, 0.0, 1.0)


def input_fn(records):
    clean = preprocess(images(records)[0])
    return noise(clean), clean


def custom_model():
    inputs = layers.Input(shape=(8, 8, 2))
    # Encoder
    x = layers.Conv2D(6, (3, 3), activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D((2, 2), padding="same")(x)
    x = layers.Conv2D(6, (3, 3), activation="relu", padding="same")(x)
    x = layers.MaxPooling2D((2, 2), padding="same")(x)
    # Decoder
    x = layers.Conv2DTranspose(6, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = layers.Conv2DTranspose(6, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = layers.Conv2D(2, (3, 3), activation="sigmoid", padding="same")(x)
    return keras.Model(inputs, x)


def optimizer():
    return keras.optimizers.Adam()


def plain(data):
    model = custom_model()
    model.compile(optimizer=optimizer(), loss=loss)
    return fit(data, model, input_fn)
