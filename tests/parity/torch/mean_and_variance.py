"""A model of a mean and a variance, without an input function: labels [n] as the outputs."""

import numpy as np
import torch
from shared import loop
from torch import nn

GROUP = "Losses"


def data_schema():
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


class Normal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 12), nn.Tanh())
        self.mean, self.variance = nn.Linear(12, 1), nn.Linear(12, 1)

    def forward(self, x):
        states = self.body(x)
        variance = nn.functional.softplus(self.variance(states)) + 1e-3
        return self.mean(states).squeeze(-1), variance.squeeze(-1)


def custom_model():
    return Normal()


def loss(labels, outputs):
    mean, variance = outputs
    return nn.functional.gaussian_nll_loss(mean, labels, variance)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def eval_metrics_fn():
    return {"metric": lambda labels, outputs: (outputs[0] - labels).abs()}


def plain(data):
    model = custom_model()

    def examples(records):
        x = np.stack([record["x"] for record in records])
        return x, np.stack([record["y"][0] for record in records])

    return loop(
        data, model, optimizer(model.parameters()), lambda outputs, labels: loss(labels, outputs),
        examples, metric=lambda outputs, labels: (outputs[0] - labels).abs().mean(),
    )  # fmt: skip
