"""Spatial pyramid pooling: AdaptiveMaxPooling2D with three sizes in parallel."""

import keras
from keras import layers
from shared import fit, image_schema, images

GROUP = "Convolutions and pooling"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 2, activation="tanh")(inputs)
    pyramid = [layers.Flatten()(layers.AdaptiveMaxPooling2D(size)(x)) for size in (2, 3, (4, 6))]
    x = layers.Dense(8, activation="relu")(layers.Concatenate()(pyramid))
    return keras.Model(inputs, layers.Dense(3)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
