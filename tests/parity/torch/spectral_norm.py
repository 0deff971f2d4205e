"""Spectral norm, weight norm (parametrizations)."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)),
        nn.Tanh(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 1)),
    )


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
