"""Tied weights."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)
        self.up.weight = nn.Parameter(self.down.weight.detach().t().clone())
        self.again = self.down

    def forward(self, x):
        return self.again(self.up(torch.tanh(self.down(x)))).sum(1, keepdim=True)


def custom_model():
    return Tied()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
