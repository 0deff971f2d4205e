"""An angle predicted as sine and cosine, with a metric in degrees by `ops.rad2deg`."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, table_schema

GROUP = "Metrics"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x, np.arctan2(x[:, :1], x[:, 1:2])


def loss(labels, predictions):
    direction = ops.concatenate([ops.sin(labels), ops.cos(labels)], axis=-1)
    return ops.mean(ops.square(direction - predictions), axis=-1)


def degrees(labels, predictions):
    angle = ops.arctan2(predictions[:, 0], predictions[:, 1])
    apart = ops.abs(ops.rad2deg(angle - labels[:, 0]))
    return ops.minimum(apart, 360.0 - apart)


def eval_metrics_fn():
    return {"degrees": degrees}


def custom_model():
    inputs = keras.Input((8,))
    x = layers.Dense(12, activation="relu")(inputs)
    return keras.Model(inputs, layers.UnitNormalization()(layers.Dense(2)(x)))


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=[degrees])
    return fit(data, model, input_fn)
