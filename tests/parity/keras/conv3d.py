"""Conv3D, MaxPooling3D, GlobalAveragePooling3D."""

import keras
from keras import layers
from shared import fit, image_schema, images

GROUP = "Convolutions and pooling"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Reshape((8, 8, 2, 1))(inputs)
    x = layers.Conv3D(filters=4, kernel_size=(3, 3, 2), activation="relu", padding="same")(x)
    x = layers.MaxPooling3D(pool_size=(2, 2, 1))(x)
    x = layers.Conv3D(filters=6, kernel_size=2, activation="relu")(x)
    x = layers.GlobalAveragePooling3D()(x)
    return keras.Model(inputs, layers.Dense(units=3)(x), name="3dcnn")


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
