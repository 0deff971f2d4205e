"""SpatialDropout2D, GaussianNoise, AlphaDropout."""

import keras
from shared import fit, image_schema, images

GROUP = "Randomness in layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.Conv2D(4, 3),
            keras.layers.SpatialDropout2D(0.5),
            keras.layers.GaussianNoise(0.3),
            keras.layers.Flatten(),
            keras.layers.AlphaDropout(0.2),
            keras.layers.Dense(3),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
