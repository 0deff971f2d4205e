"""RandAugment, RandomErasing."""

import keras
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
    inputs = keras.Input((8, 8, 2))
    x = keras.layers.Concatenate()([inputs, inputs])[..., :3] / 2.0
    x = keras.layers.RandAugment(value_range=(0, 1), seed=1)(x)
    x = keras.layers.RandomErasing(factor=0.5, value_range=(0, 1), seed=2)(x)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
