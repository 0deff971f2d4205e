"""A gradient penalty (WGAN-GP): a `compute_loss` with a GradientTape over the inputs."""

import keras
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Custom training"

data_schema, input_fn = table_schema, numbers


class Critic(keras.Model):
    def __init__(self, weight=10.0):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.score = keras.layers.Dense(1)
        self.weight = weight

    def call(self, x):
        return self.score(self.hidden(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        fake = tf.reverse(x, [1]) + y
        between = 0.3 * x + 0.7 * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self(between, training=training)
        gradient = tape.gradient(score, between)
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradient), axis=1) + 1e-12)
        penalty = tf.reduce_mean(tf.square(norm - 1.0))
        apart = tf.reduce_mean(self(fake, training=training)) - tf.reduce_mean(y_pred)
        return apart + self.weight * penalty


def custom_model():
    return Critic()


def loss(labels, predictions):
    return keras.ops.mean(-predictions)


def optimizer():
    return keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.9)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
