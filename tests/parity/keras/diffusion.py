"""A diffusion model (Keras example): a network, its moving average and a custom `train_step`."""

import keras
from keras import layers, ops
from shared import fit, image_schema, images

GROUP = "Custom training"
EXPECT = (
    "refused: workers compute gradients and make the update separately, so there is no single step "
    "to override"
)
REFUSAL = "train_step"

data_schema = image_schema
loss = keras.losses.MeanAbsoluteError()


def input_fn(records):
    image, _ = images(records)
    return image, image


def network():
    noisy, variance = keras.Input((8, 8, 2)), keras.Input((1, 1, 1))
    x = layers.Concatenate()([noisy, layers.UpSampling2D(8)(variance)])
    x = layers.Conv2D(4, 3, padding="same", activation="swish")(x)
    return keras.Model([noisy, variance], layers.Conv2D(2, 1, kernel_initializer="zeros")(x))


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization(mean=0.5, variance=0.1)
        self.network = network()
        self.ema_network = keras.models.clone_model(self.network)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker]

    def call(self, image):
        return self.ema_network([image, ops.ones_like(image[:, :1, :1, :1])])

    def train_step(self, data):
        import tensorflow as tf

        image = self.normalizer(data[0], training=True)
        noise = keras.random.normal(ops.shape(image))
        time = keras.random.uniform((ops.shape(image)[0], 1, 1, 1))
        noisy = ops.cos(time) * image + ops.sin(time) * noise
        with tf.GradientTape() as tape:
            noise_loss = self.loss(noise, self.network([noisy, ops.sin(time) ** 2], training=True))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(noise_loss, weights), weights, strict=True)
        )
        self.noise_loss_tracker.update_state(noise_loss)
        for weight, average in zip(self.network.weights, self.ema_network.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}


def custom_model():
    return Diffusion()


def optimizer():
    return keras.optimizers.AdamW(0.01, weight_decay=1e-4)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
