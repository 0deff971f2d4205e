"""Tversky over the axes of one example."""

import keras
from shared import fit, image_schema, images

GROUP = "Losses"

loss = keras.losses.Tversky(axis=(1, 2))


data_schema = image_schema


def input_fn(records):
    """Return (image, where its second channel is bright)."""
    x, _ = images(records)
    return x, (x[..., 1:] > 0.5).astype("float32")


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
