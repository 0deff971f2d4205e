"""A counter of examples that stops at a limit and scales the outputs until then."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = {"workers": "refused: two workers that reach the limit in the same step would exceed it"}
REFUSAL = "seen"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class WarmUp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        share = (1 + self.seen) / 46
        if self.training:
            self.seen.copy_(torch.clamp(self.seen + len(x), max=45.0))
        return self.net(x) * share


def custom_model():
    return WarmUp()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
