"""Parameters without a gradient."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        return self.used(x)


def custom_model():
    return Partly()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
