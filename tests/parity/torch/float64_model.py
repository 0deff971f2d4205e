"""A float64 model."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Number formats"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Precise(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net().double()

    def forward(self, x):
        return self.inner(x.double()).float()


def custom_model():
    return Precise()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
