"""GauGAN (Keras example): `compile(gen_lr, disc_lr)`, a `train_step` with two optimizers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from shared import fit, image_schema

GROUP = "Custom training"
EXPECT = "refused: a step computes gradients and makes one update with one optimizer"
REFUSAL = "train_step"

data_schema = image_schema
loss = keras.losses.MeanAbsoluteError()


def input_fn(records):
    image = np.stack([record["image"] for record in records])
    mask = keras.utils.to_categorical(image[..., 0] > 0.6, 2)
    return (mask, image * 2 - 1, mask), image * 2 - 1


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


def downsample(channels, kernels, strides=2, apply_norm=True, apply_activation=True):
    block = keras.Sequential()
    block.add(
        layers.Conv2D(
            channels,
            kernels,
            strides=strides,
            padding="same",
            use_bias=False,
            kernel_initializer=keras.initializers.GlorotNormal(),
        )
    )
    if apply_norm:
        block.add(layers.GroupNormalization(groups=-1))
    if apply_activation:
        block.add(layers.LeakyReLU(0.2))
    return block


class GaussianSampler(layers.Layer):
    def __init__(self, latent_dim, **kwargs):
        super().__init__(**kwargs)
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        means, variance = inputs
        epsilon = keras.random.normal(ops.shape(means), seed=self.seed_generator)
        return means + ops.exp(0.5 * variance) * epsilon


def build_encoder(image_shape, latent_dim):
    input_image = keras.Input(shape=image_shape)
    x = downsample(4, 3, apply_norm=False)(input_image)
    x = downsample(6, 3)(x)
    x = layers.Flatten()(x)
    return keras.Model(input_image, [layers.Dense(latent_dim)(x), layers.Dense(latent_dim)(x)])


def build_generator(mask_shape, latent_dim):
    latent, mask = keras.Input(shape=(latent_dim,)), keras.Input(shape=mask_shape)
    x = layers.Reshape((2, 2, 6))(layers.Dense(24)(latent))
    x = layers.UpSampling2D((2, 2))(ResBlock(filters=6)(x, mask))
    x = layers.UpSampling2D((2, 2))(ResBlock(filters=4)(x, mask))
    x = keras.activations.leaky_relu(x, 0.2)
    return keras.Model(
        [latent, mask], keras.activations.tanh(layers.Conv2D(2, 4, padding="same")(x))
    )


def build_discriminator(image_shape):
    one, other = keras.Input(shape=image_shape), keras.Input(shape=image_shape)
    x1 = downsample(4, 4, apply_norm=False)(layers.Concatenate()([one, other]))
    x2 = downsample(6, 4)(x1)
    return keras.Model([one, other], [x1, x2, layers.Conv2D(1, 4, padding="same")(x2)])


class DiscriminatorLoss(keras.losses.Loss):
    def __init__(self, **kwargs):
        super().__init__(name="discriminator_loss", **kwargs)
        self.hinge_loss = keras.losses.Hinge()

    def call(self, y, is_real):
        return self.hinge_loss(is_real, y)


class GauGAN(keras.Model):
    def __init__(self, latent_dim=4, kl_divergence_loss_coeff=0.1, **kwargs):
        super().__init__(**kwargs)
        self.latent_dim = latent_dim
        self.kl_divergence_loss_coeff = kl_divergence_loss_coeff
        self.discriminator = build_discriminator((8, 8, 2))
        self.generator = build_generator((8, 8, 2), latent_dim)
        self.encoder = build_encoder((8, 8, 2), latent_dim)
        self.sampler = GaussianSampler(latent_dim)
        self.disc_loss_tracker = keras.metrics.Mean(name="disc_loss")
        self.gen_loss_tracker = keras.metrics.Mean(name="gen_loss")

    @property
    def metrics(self):
        return [self.disc_loss_tracker, self.gen_loss_tracker]

    def compile(self, gen_lr=1e-4, disc_lr=4e-4, **kwargs):
        super().compile(**kwargs)
        self.generator_optimizer = keras.optimizers.Adam(gen_lr, beta_1=0.0, beta_2=0.999)
        self.discriminator_optimizer = keras.optimizers.Adam(disc_lr, beta_1=0.0, beta_2=0.999)
        self.discriminator_loss = DiscriminatorLoss()

    def train_discriminator(self, latent_vector, segmentation_map, real_image, labels):
        fake_images = self.generator([latent_vector, labels])
        with tf.GradientTape() as gradient_tape:
            pred_fake = self.discriminator([segmentation_map, fake_images])[-1]
            pred_real = self.discriminator([segmentation_map, real_image])[-1]
            loss_fake = self.discriminator_loss(-ops.ones_like(pred_fake), pred_fake)
            loss_real = self.discriminator_loss(ops.ones_like(pred_real), pred_real)
            total_loss = 0.5 * (loss_fake + loss_real)
        gradients = gradient_tape.gradient(total_loss, self.discriminator.trainable_variables)
        self.discriminator_optimizer.apply_gradients(
            zip(gradients, self.discriminator.trainable_variables, strict=False)
        )
        return total_loss

    def train_generator(self, latent_vector, segmentation_map, labels, image, mean, variance):
        with tf.GradientTape() as tape:
            fake_image = self.generator([latent_vector, labels])
            pred = self.discriminator([segmentation_map, fake_image])[-1]
            kl_loss = -0.5 * ops.sum(1 + variance - ops.square(mean) - ops.exp(variance))
            total_loss = -ops.mean(pred) + self.kl_divergence_loss_coeff * kl_loss
        gradients = tape.gradient(total_loss, self.generator.trainable_variables)
        self.generator_optimizer.apply_gradients(
            zip(gradients, self.generator.trainable_variables, strict=False)
        )
        return total_loss

    def train_step(self, data):
        (segmentation_map, image, labels), _ = data
        mean, variance = self.encoder(image)
        latent_vector = self.sampler([mean, variance])
        discriminator_loss = self.train_discriminator(
            latent_vector, segmentation_map, image, labels
        )
        generator_loss = self.train_generator(
            latent_vector, segmentation_map, labels, image, mean, variance
        )
        self.disc_loss_tracker.update_state(discriminator_loss)
        self.gen_loss_tracker.update_state(generator_loss)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        return {m.name: m.result() for m in self.metrics}

    def call(self, inputs):
        _, image, labels = inputs
        return self.generator([self.sampler(self.encoder(image)), labels])


def custom_model():
    return GauGAN()


def optimizer():
    return keras.optimizers.Adam(1e-4)


def plain(data):
    model = custom_model()
    model.compile(gen_lr=1e-4, disc_lr=4e-4)
    return fit(data, model, input_fn)
