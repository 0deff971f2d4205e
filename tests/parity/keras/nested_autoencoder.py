"""An autoencoder: a model that consists of an encoder model and a decoder model."""

import keras
from keras import layers
from shared import fit, image_schema, images

GROUP = "Models"

data_schema = image_schema
loss = keras.losses.MeanSquaredError()


def input_fn(records):
    x, _ = images(records)
    return x, x


def custom_model():
    encoder_input = keras.Input(shape=(8, 8, 2), name="original_img")
    x = layers.Conv2D(4, 3, activation="relu")(encoder_input)
    x = layers.Conv2D(8, 3, activation="relu")(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(8, 2, activation="relu")(x)
    encoder = keras.Model(encoder_input, layers.GlobalMaxPooling2D()(x), name="encoder")

    decoder_input = keras.Input(shape=(8,), name="encoded_img")
    x = layers.Reshape((2, 2, 2))(decoder_input)
    x = layers.UpSampling2D(2)(x)
    x = layers.Conv2DTranspose(4, 3, activation="relu")(x)
    decoder_output = layers.Conv2DTranspose(2, 3, activation="relu")(x)
    decoder = keras.Model(decoder_input, decoder_output, name="decoder")

    autoencoder_input = keras.Input(shape=(8, 8, 2), name="img")
    encoded_img = encoder(autoencoder_input)
    return keras.Model(autoencoder_input, decoder(encoded_img), name="autoencoder")


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
