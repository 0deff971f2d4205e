"""A model whose outputs are [n], a loss of one's own, and no input function: labels are [n] too."""

import numpy as np
import torch
from shared import loop, net
from torch import nn

GROUP = "Losses"


def data_schema():
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x).squeeze(-1)


def custom_model():
    return Squeezed()


def loss(labels, outputs):
    return ((outputs - labels) ** 2).mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def eval_metrics_fn():
    return {"metric": lambda labels, outputs: (outputs - labels).abs()}


def plain(data):
    model = custom_model()

    def examples(records):
        x = np.stack([record["x"] for record in records])
        return x, np.stack([record["y"][0] for record in records])

    return loop(
        data, model, optimizer(model.parameters()), lambda outputs, labels: loss(labels, outputs),
        examples, metric=lambda outputs, labels: (outputs - labels).abs().mean(),
    )  # fmt: skip
