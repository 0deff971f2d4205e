"""Outputs in a dict."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Models"

data_schema, input_fn = table_schema, numbers


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.number, self.square = nn.Linear(8, 6), nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return {"number": self.number(x), "square": self.square(x)}


def loss(labels, predictions):
    number = (predictions["number"] - labels) ** 2
    return (number + 0.5 * (predictions["square"] - labels**2) ** 2).mean()


def custom_model():
    return Both()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs).mean(),
        input_fn,
    )
