"""A cycle of factors, in an attribute, that `forward` advances."""

import itertools

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = "refused: no checkpoint stores where an iterator is; compute it from a counter in a buffer"
REFUSAL = r"the attribute factors of the model changes with every call of `forward`"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()
        self.factors = itertools.cycle([1.0, 0.5, 0.25, 0.125, 2.0])

    def forward(self, x):
        return self.inner(x * next(self.factors)) if self.training else self.inner(x)


def custom_model():
    return Scaled()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
