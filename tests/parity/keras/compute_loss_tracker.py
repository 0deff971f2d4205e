"""Metrics that `compute_loss` updates: the terms of a loss."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = {
    "two workers": (
        "differs: it is the mean of one value for each minibatch, and the two of a step may differ "
        "in size"
    )
}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Tracking(keras.Model):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.squares = keras.metrics.Mean(name="squares")
        self.penalty = keras.metrics.Mean(name="penalty")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        squares = keras.ops.mean(keras.ops.square(y_pred - y))
        penalty = sum(self.losses)
        self.squares.update_state(squares)
        self.penalty.update_state(penalty)
        return squares + penalty


def custom_model():
    inputs = keras.Input((8,))
    x = keras.layers.Dense(6, activation="tanh", kernel_regularizer="l2")(inputs)
    return Tracking(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer())
    return fit(data, model, input_fn)
