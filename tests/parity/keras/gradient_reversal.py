"""Domain-adversarial training: a reversed gradient, scaled by a counter of steps."""

import keras
import numpy as np
from keras import layers, ops
from shared import classes, fit, table_schema

GROUP = "Custom training"

data_schema = table_schema


@ops.custom_gradient
def reversed_gradient(x, strength):
    def grad(*args, upstream=None):
        if upstream is None:
            (upstream,) = args
        return -strength * upstream, ops.zeros_like(strength)

    return ops.copy(x), grad


class GradientReversal(layers.Layer):
    def __init__(self, num_steps, **options):
        super().__init__(**options)
        self.num_steps = num_steps

    def build(self, shape):
        self.step = self.add_weight(
            shape=(), dtype="int64", initializer="zeros", trainable=False, name="step"
        )

    def call(self, x, training=False):
        progress = ops.cast(self.step, self.compute_dtype) / self.num_steps
        strength = 2 / (1 + ops.exp(-10 * progress)) - 1
        if training:
            self.step.assign_add(1)
        return reversed_gradient(x, strength)


def input_fn(records):
    """Return (x, its class, which is known in the first domain only, and its domain)."""
    x, kind = classes(records)
    domain = np.float32(np.stack([record["weight"] for record in records]) > 1.1)
    return x, {"kind": np.where(domain[:, 0] > 0, -1, kind), "domain": domain}


def loss(labels, predictions):
    known = labels["kind"] >= 0
    kind = keras.losses.sparse_categorical_crossentropy(
        ops.where(known, labels["kind"], 0), predictions["kind"], from_logits=True
    )
    domain = keras.losses.binary_crossentropy(
        labels["domain"], predictions["domain"], from_logits=True
    )
    return ops.where(known, kind, 0.0) + domain


def custom_model():
    inputs = keras.Input((8,))
    features = layers.Dense(8, activation="relu")(inputs)
    x = layers.Dense(6, activation="relu")(GradientReversal(18)(features))
    return keras.Model(inputs, {"kind": layers.Dense(3)(features), "domain": layers.Dense(1)(x)})


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss_of_outputs())
    history, model = fit(data, model, input_fn)
    return {name: history[name] for name in ("loss", "val_loss")}, model


def loss_of_outputs():
    """Return the loss as one for each output, which `fit` adds up."""

    def kind(labels, predictions):
        labels = ops.reshape(labels, (-1,))
        known = labels >= 0
        values = keras.losses.sparse_categorical_crossentropy(
            ops.where(known, labels, 0), predictions, from_logits=True
        )
        return ops.where(known, values, 0.0)

    return {"kind": kind, "domain": keras.losses.BinaryCrossentropy(from_logits=True)}
