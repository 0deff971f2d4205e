"""A model for augmentation within the model, in training only: RandomContrast, RandomSaturation."""

import keras
from keras import layers
from shared import fit, image_schema, images

GROUP = "Randomness in layers"
EXPECT = {
    "one process": "differs: random draws are a function of (seed, step, worker), not of a "
    "generator's state",
    "workers": "differs: random draws are a function of (seed, step, worker), not of a generator's "
    "state",
}

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    augmentation = keras.Sequential(
        [
            layers.RandomContrast(0.4, value_range=(0, 1), seed=3),
            layers.RandomSaturation(0.9, value_range=(0, 1)),
        ],
        name="augmentation",
    )
    inputs = keras.Input((8, 8, 2))
    x = layers.Concatenate()([inputs, inputs])[..., :3]
    x = layers.Conv2D(4, 3, activation="relu")(augmentation(x))
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
