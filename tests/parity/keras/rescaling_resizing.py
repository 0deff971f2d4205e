"""Rescaling, Resizing, CenterCrop."""

import keras
from shared import fit, image_schema, images

GROUP = "Preprocessing layers"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.Rescaling(2.0, offset=-1.0),
            keras.layers.Resizing(6, 6),
            keras.layers.CenterCrop(5, 5),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
