"""nn.utils.weight_norm and nn.utils.spectral_norm (the older versions, with hooks)."""

import warnings

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"

warnings.filterwarnings("ignore", "`torch.nn.utils.weight_norm` is deprecated", FutureWarning)
data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(
        nn.utils.weight_norm(nn.Linear(8, 6), name="weight"),
        nn.Tanh(),
        nn.utils.spectral_norm(nn.Linear(6, 4)),
        nn.Tanh(),
        nn.Linear(4, 1),
    )


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
