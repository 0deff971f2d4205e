"""AdaptiveAveragePooling2D to a size that divides the image size, and to one that does not."""

import keras
from keras import layers
from shared import fit, image_schema, images

GROUP = "Convolutions and pooling"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 2, activation="relu")(inputs)
    x = layers.AdaptiveAveragePooling2D((3, 4))(x)
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    x = layers.AdaptiveAveragePooling2D((3, 2))(x)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
