"""Quantile regression: a pinball loss of several quantiles, and a metric for one of them."""

import keras
import numpy as np
from keras import ops
from shared import fit, mlp, named, numbers, table_schema

GROUP = "Losses"

QUANTILES = np.float32([0.1, 0.5, 0.9])

data_schema, input_fn = table_schema, numbers


def loss(y_true, y_pred):
    error = y_true - y_pred
    return ops.mean(ops.maximum(QUANTILES * error, (QUANTILES - 1) * error), axis=-1)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.RMSprop(0.01)


def coverage(y_true, y_pred):
    inside = ops.logical_and(y_pred[:, :1] <= y_true, y_true <= y_pred[:, 2:])
    return ops.mean(ops.cast(inside, "float32"), axis=-1)


def eval_metrics_fn():
    return {"coverage": keras.metrics.MeanMetricWrapper(coverage)}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
