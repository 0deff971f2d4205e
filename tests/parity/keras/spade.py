"""The generator of GauGAN (Keras example): SPADE normalizes by the batch, scaled by a mask."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, image_schema

GROUP = "Models"
EXPECT = {"workers": "refused: each worker would normalize with its own minibatch only"}
REFUSAL = "other examples of its batch"

data_schema = image_schema
loss = keras.losses.MeanAbsoluteError()


def input_fn(records):
    """Return (the colour of the picture, and a map of its bright places), the picture."""
    image = np.stack([record["image"] for record in records])
    mask = keras.utils.to_categorical(image[..., 0] > 0.6, 2)
    return {"latent": image.mean((1, 2)), "mask": mask}, image * 2 - 1


class SPADE(layers.Layer):
    def __init__(self, filters, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.conv = layers.Conv2D(4, 3, padding="same", activation="relu")
        self.conv_gamma = layers.Conv2D(filters, 3, padding="same")
        self.conv_beta = layers.Conv2D(filters, 3, padding="same")

    def build(self, input_shape):
        self.resize_shape = input_shape[1:3]

    def call(self, input_tensor, raw_mask):
        mask = ops.image.resize(raw_mask, self.resize_shape, interpolation="nearest")
        x = self.conv(mask)
        gamma = self.conv_gamma(x)
        beta = self.conv_beta(x)
        mean, var = ops.moments(input_tensor, axes=(0, 1, 2), keepdims=True)
        std = ops.sqrt(var + self.epsilon)
        normalized = (input_tensor - mean) / std
        return gamma * normalized + beta


class ResBlock(layers.Layer):
    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters

    def build(self, input_shape):
        input_filter = input_shape[-1]
        self.spade_1 = SPADE(input_filter)
        self.spade_2 = SPADE(self.filters)
        self.conv_1 = layers.Conv2D(self.filters, 3, padding="same")
        self.conv_2 = layers.Conv2D(self.filters, 3, padding="same")
        self.learned_skip = False

        if self.filters != input_filter:
            self.learned_skip = True
            self.spade_3 = SPADE(input_filter)
            self.conv_3 = layers.Conv2D(self.filters, 3, padding="same")

    def call(self, input_tensor, mask):
        x = self.spade_1(input_tensor, mask)
        x = self.conv_1(keras.activations.leaky_relu(x, 0.2))
        x = self.spade_2(x, mask)
        x = self.conv_2(keras.activations.leaky_relu(x, 0.2))
        skip = (
            self.conv_3(keras.activations.leaky_relu(self.spade_3(input_tensor, mask), 0.2))
            if self.learned_skip
            else input_tensor
        )
        return skip + x


def build_generator(mask_shape, latent_dim=2):
    latent = keras.Input(shape=(latent_dim,), name="latent")
    mask = keras.Input(shape=mask_shape, name="mask")
    x = layers.Dense(2 * 2 * 6)(latent)
    x = layers.Reshape((2, 2, 6))(x)
    x = ResBlock(filters=6)(x, mask)
    x = layers.UpSampling2D((2, 2))(x)
    x = ResBlock(filters=4)(x, mask)
    x = layers.UpSampling2D((2, 2))(x)
    x = keras.activations.leaky_relu(x, 0.2)
    output_image = keras.activations.tanh(layers.Conv2D(2, 4, padding="same")(x))
    return keras.Model([latent, mask], output_image, name="generator")


def custom_model():
    return build_generator((8, 8, 2))


def optimizer():
    return keras.optimizers.SGD(0.05)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
