"""Frozen layers (`requires_grad_(False)`)."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    model = net()
    model[0].requires_grad_(False)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
