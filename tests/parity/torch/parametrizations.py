"""register_parametrization: a custom symmetric weight, and an orthogonal one."""

import torch
from shared import loop, numbers, table_schema
from torch import nn
from torch.nn.utils import parametrizations, parametrize

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x):
        return x.triu()


class MatrixExponential(nn.Module):
    def forward(self, x):
        upper = x.triu(1)
        return torch.matrix_exp(upper - upper.transpose(-1, -2))


def custom_model():
    symmetric, turning, last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
    parametrize.register_parametrization(symmetric, "weight", Symmetric())
    parametrize.register_parametrization(turning, "weight", MatrixExponential())
    wide = parametrizations.orthogonal(nn.Linear(8, 8))
    return nn.Sequential(symmetric, nn.Tanh(), turning, nn.Tanh(), wide, nn.Tanh(), last)


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
