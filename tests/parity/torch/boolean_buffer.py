"""A boolean buffer."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.register_buffer("seen", torch.tensor(data=False))

    def forward(self, x):
        if self.training:
            self.seen.fill_(value=True)
        return self.linear(x)


def custom_model():
    return Flagged()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
