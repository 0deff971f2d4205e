"""A mean over the labels that are present; in the first batches, none is missing."""

import keras
import numpy as np
from shared import fit, mlp, table_schema

GROUP = "Losses"
EXPECT = {
    "workers": "refused: it divides by the number of labels that are present, not by the number of "
    "examples"
}
REFUSAL = "batch"

data_schema = table_schema


def input_fn(records):
    """Return (x, (y, whether it is there)): it is missing for a few."""
    x = np.stack([record["x"] for record in records])
    y = np.stack([record["y"] for record in records])
    there = np.float32([[float(record["x"][7] <= 1.6)] for record in records])
    return x, np.concatenate([y, there], axis=1)


def loss(labels, predictions):
    there = labels[:, 1:]
    return keras.ops.sum(there * (labels[:, :1] - predictions) ** 2) / keras.ops.sum(there)


def custom_model():
    return mlp(1)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
