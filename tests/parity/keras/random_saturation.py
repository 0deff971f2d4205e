"""RandomSaturation with a fixed factor: two equal bounds, as in Keras' reference."""

import keras
from keras import layers
from shared import fit, image_schema, images

GROUP = "Preprocessing layers"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Concatenate()([inputs, inputs])[..., :3]
    x = layers.RandomSaturation((0.8, 0.8), value_range=(0, 1))(x)
    x = layers.Conv2D(4, 3, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
