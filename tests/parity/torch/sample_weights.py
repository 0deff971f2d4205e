"""Sample weights."""

import numpy as np
import torch
from shared import net, numbers, table_schema

GROUP = "Losses"

data_schema = table_schema


def input_fn(records):
    """Return (x, y, weight)."""
    return *numbers(records), np.concatenate([record["weight"] for record in records])


def loss(labels, predictions):
    return ((predictions - labels) ** 2).mean(1)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    history = {"loss": [], "val_loss": []}

    def weighted(records):
        x, y, weight = map(torch.tensor, input_fn(records))
        return (weight * loss(y, model(x))).mean()

    for _ in range(data.epochs):
        total = 0.0
        for first in range(0, len(data.train), data.batch_size):
            batch = data.train[first : first + data.batch_size]
            stepping.zero_grad()
            value = weighted(batch)
            value.backward()
            stepping.step()
            total += value.item() * len(batch)
        history["loss"].append(total / len(data.train))
        history["val_loss"].append(weighted(data.validation).item())
    return history, model
