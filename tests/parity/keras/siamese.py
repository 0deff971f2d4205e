"""A siamese network: one tower for two inputs; Subtract and Multiply combine its outputs."""

import keras
import numpy as np
from keras import layers
from shared import fit, named, table_schema

GROUP = "Models"

data_schema = table_schema
loss = keras.losses.BinaryCrossentropy()


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    same = np.float32(np.abs(x[:, :1] - x[:, 4:5]) < 0.8)
    return {"left": x[:, :4], "right": x[:, 4:]}, same


def custom_model():
    tower = keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(5)]
    )
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    one, other = tower(left), tower(right)
    apart = layers.Subtract()([one, other])
    x = layers.Concatenate()(
        [
            layers.Multiply()([apart, apart]),
            layers.Multiply()([one, other]),
            layers.Dot(1, normalize=True)([one, other]),
        ]
    )
    return keras.Model([left, right], layers.Dense(1, activation="sigmoid")(x))


def optimizer():
    return keras.optimizers.Adam(0.01)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
