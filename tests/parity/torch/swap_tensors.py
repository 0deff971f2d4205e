"""Weights of a trained model swapped with those of a new one by `utils.swap_tensors`."""

import torch
from shared import loop, numbers, table_schema
from torch import nn
from torch.utils import swap_tensors

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    other = nn.Linear(8, 6)
    with torch.no_grad():
        other.weight.copy_(torch.eye(6, 8))
    swap_tensors(model[0].weight, other.weight)
    swap_tensors(model[2].bias, nn.Parameter(torch.full((6,), 0.1), requires_grad=False))
    return model


def optimizer(parameters):
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
