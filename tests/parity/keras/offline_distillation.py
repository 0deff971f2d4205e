"""Distillation with a teacher's logits that were computed before: two losses with their weights."""

import keras
import numpy as np
from keras import ops
from shared import classes, fit, mlp, table_schema

GROUP = "Losses"

data_schema = table_schema
TEACHER = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)


def input_fn(records):
    x, label = classes(records)
    return x, {"label": label, "teacher": x @ TEACHER}


def custom_model():
    inputs = keras.Input((8,))
    logits = mlp(3)(inputs)
    return keras.Model(inputs, {"label": logits, "teacher": keras.layers.Identity()(logits)})


def soft(labels, predictions):
    warmth = 4.0
    return (
        keras.losses.kl_divergence(ops.softmax(labels / warmth), ops.softmax(predictions / warmth))
        * warmth**2
    )


def loss(labels, predictions):
    hard = keras.losses.sparse_categorical_crossentropy(
        labels["label"], predictions["label"], from_logits=True
    )
    return ops.mean(0.3 * hard + 0.7 * soft(labels["teacher"], predictions["teacher"]))


def optimizer():
    return keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True)


def plain(data):
    model = custom_model()
    model.compile(
        optimizer(),
        loss={
            "label": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "teacher": soft,
        },
        loss_weights={"label": 0.3, "teacher": 0.7},
    )
    history, model = fit(data, model, input_fn)
    return {name: history[name] for name in ("loss", "val_loss")}, model
