"""nn.Softshrink: sparse codes by learned iterations (LISTA), and their reconstruction."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Layers"

data_schema = table_schema


def input_fn(records):
    x, _ = numbers(records)
    return x, x


class Lista(nn.Module):
    def __init__(self, iterations=3):
        super().__init__()
        self.encode = nn.Linear(8, 12, bias=False)
        self.inhibit = nn.Linear(12, 12, bias=False)
        self.decode = nn.Linear(12, 8, bias=False)
        self.shrink = nn.Softshrink(0.1)
        self.iterations = iterations

    def forward(self, x):
        given = self.encode(x)
        code = self.shrink(given)
        for _ in range(self.iterations):
            code = self.shrink(given + self.inhibit(code))
        return self.decode(code), code


def loss(labels, predictions):
    restored, code = predictions
    return nn.functional.mse_loss(restored, labels) + 0.01 * code.abs().sum(1).mean()


def custom_model():
    return Lista()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, lambda out, labels: loss(labels, out), input_fn)
