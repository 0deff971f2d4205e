"""Conv2DTranspose."""

import keras
from shared import fit, image_schema, images

GROUP = "Convolutions and pooling"
EXPECT = {
    "two workers": "equal within 1e-4: convolutions sum four images in another order than eight",
}

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.Conv2DTranspose(3, 3, strides=2),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
