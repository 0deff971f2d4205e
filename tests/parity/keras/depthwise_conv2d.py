"""DepthwiseConv2D, AveragePooling2D."""

import keras
from shared import fit, image_schema, images

GROUP = "Convolutions and pooling"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.DepthwiseConv2D(3, depth_multiplier=2),
            keras.layers.AveragePooling2D(2),
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
