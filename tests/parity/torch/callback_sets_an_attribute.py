"""A callback that sets an attribute of a module, which `forward` reads."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = net(), 1.0

    def forward(self, x):
        return self.inner(x) * self.scale


class Anneal:
    def on_epoch_begin(self, epoch):
        self.model.scale = 1.0 / (1 + epoch)


def custom_model():
    return Scaled()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Anneal()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
