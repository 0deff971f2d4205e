"""F.hinge_embedding_loss of distances in a Siamese network, F.pairwise_distance."""

import numpy as np
import torch
from shared import loop, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Losses"

data_schema = table_schema


def input_fn(records):
    """Return (two halves of x, 1 for alike and -1 for not)."""
    x = np.stack([record["x"] for record in records])
    y = np.stack([record["y"][0] for record in records])
    return {"left": x[:, :4], "right": x[:, 4:]}, np.where(y > 0, 1, -1)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, left, right):
        return functional.pairwise_distance(self.embed(left), self.embed(right))


def loss(output, labels):
    return functional.hinge_embedding_loss(output, labels, margin=1.0)


def eval_metrics_fn():
    return {"metric": lambda labels, predictions: ((predictions < 0.5) == (labels > 0)).float()}


def custom_model():
    return Siamese()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


class Called(nn.Module):
    """Lets the plain loop give one features' dict to `forward`."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features):
        return self.model(**features)


def plain(data):
    model = custom_model()
    history, _ = loop(
        data, Called(model), optimizer(model.parameters()), loss, input_fn,
        metric=lambda outputs, labels: ((outputs < 0.5) == (labels > 0)).float().mean(),
    )  # fmt: skip
    return history, model
