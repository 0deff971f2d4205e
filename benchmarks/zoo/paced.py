"""A small model whose batches take their time, as if there were a core for each worker."""

import time

import numpy as np
import torch
from torch import nn

BATCH_S = 0.2


def custom_model():
    return nn.Linear(64, 10)


def data_schema():
    return [
        {"name": "image", "shape": [64], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    time.sleep(BATCH_S)
    return (
        {"image": np.stack([record["image"] for record in records])},
        np.stack([record["label"] for record in records]),
    )


def loss(output, labels):
    return nn.functional.cross_entropy(output, labels.reshape(-1))


def optimizer(parameters):
    return torch.optim.Adam(parameters)
