"""SparseCategoricalCrossentropy of classes in the first axis (`axis=1`)."""

import keras
import numpy as np
from keras import layers
from shared import fit, image_schema

GROUP = "Losses"

data_schema = image_schema
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, axis=1)


def input_fn(records):
    """Return (image, a class for each pixel)."""
    x = np.stack([record["image"] for record in records])
    return x, np.int64(x[..., 0] > 0.5) + np.int64(x[..., 1] > 0.5)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.Conv2D(3, 1),
            layers.Permute((3, 1, 2)),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
