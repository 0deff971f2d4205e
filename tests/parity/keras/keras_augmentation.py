"""Keras layers and `keras.random` in the input function: RandomRotation, MixUp, CutMix, noise."""

import keras
import numpy as np
from keras import layers
from shared import fit, image_net, image_schema, images

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, batch), not of a generator's state"

data_schema = image_schema
loss = keras.losses.CategoricalCrossentropy(from_logits=True)

augment = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomRotation(0.1, seed=3)])
mix_up, cut_mix = layers.MixUp(alpha=0.2), layers.CutMix(factor=0.5)
generator = keras.random.SeedGenerator(1337)


def input_fn(records):
    x, label = images(records)
    x = augment(x, training=True)
    x += 0.1 * keras.random.normal(x.shape) + 0.1 * keras.random.normal(x.shape, seed=generator)
    batch = {"images": x, "labels": keras.utils.to_categorical(label, 3)}
    batch = cut_mix(mix_up(batch, training=True), training=True)
    return np.array(batch["images"]), np.array(batch["labels"])


def custom_model():
    return image_net()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
