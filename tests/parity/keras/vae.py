"""A variational autoencoder (Keras guide): a Sampling layer, and the divergence by `add_loss`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Randomness in layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema = table_schema
loss = keras.losses.MeanSquaredError()


def input_fn(records):
    """Return (x, x)."""
    x, _ = numbers(records)
    return x, x


class Sampling(keras.layers.Layer):
    """Draws, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_variance = inputs
        epsilon = keras.random.normal(keras.ops.shape(mean), seed=self.seed_generator)
        return mean + keras.ops.exp(0.5 * log_variance) * epsilon


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(6, activation="tanh")
        self.mean, self.log_variance = keras.layers.Dense(2), keras.layers.Dense(2)
        self.sampling = Sampling()
        self.decoder = keras.Sequential(
            [keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(8)]
        )

    def call(self, x):
        inner = self.inner(x)
        mean, log_variance = self.mean(inner), self.log_variance(inner)
        divergence = -0.5 * keras.ops.mean(
            log_variance - keras.ops.square(mean) - keras.ops.exp(log_variance) + 1
        )
        self.add_loss(0.1 * divergence)
        return self.decoder(self.sampling((mean, log_variance)))


def custom_model():
    return Autoencoder()


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
