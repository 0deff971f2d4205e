"""Conv3DTranspose: a decoder of volumes with skip connections from the encoder."""

import keras
from keras import layers
from shared import fit, image_schema, images

GROUP = "Convolutions and pooling"
EXPECT = {
    "two workers": "equal within 1e-4: convolutions sum four images in another order than eight",
}

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    volume = layers.Reshape((8, 8, 2, 1))(inputs)
    seen = layers.Conv3D(4, 3, padding="same", activation="relu")(volume)
    x = layers.Conv3D(6, 3, strides=2, padding="same", activation="relu")(seen)
    x = layers.Conv3DTranspose(4, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Concatenate()([x, seen])
    x = layers.Conv3DTranspose(3, (2, 2, 1), padding="valid", dilation_rate=1)(x)
    x = layers.GlobalAveragePooling3D()(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
