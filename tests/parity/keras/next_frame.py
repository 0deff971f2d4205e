"""Next-frame prediction: ConvLSTM2D layers and a Conv3D."""

import keras
import numpy as np
from keras import layers
from shared import fit, image_schema, images

GROUP = "Sequences"

data_schema = image_schema
loss = keras.losses.BinaryCrossentropy()


def input_fn(records):
    """Return (frames, the frames after them): a picture that wanders to the right."""
    pictures, _ = images(records)
    frames = [pictures[:, :, k : k + 5, :1] / 2 for k in range(4)]
    frames = np.stack(frames, axis=1)
    return frames[:, :-1], frames[:, 1:]


def custom_model():
    inputs = keras.Input((None, 8, 5, 1))
    x = layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True, activation="relu")(inputs)
    x = layers.LayerNormalization()(x)
    x = layers.ConvLSTM2D(3, 1, padding="same", return_sequences=True)(x)
    return keras.Model(inputs, layers.Conv3D(1, 3, activation="sigmoid", padding="same")(x))


def optimizer():
    return keras.optimizers.Adam(0.005)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
