"""A float64 model with float64 features and labels (`model.double()`)."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Number formats"

data_schema = table_schema
loss = nn.MSELoss()


def input_fn(records):
    """Return (x, y), both float64."""
    x, y = numbers(records)
    return x.astype("float64") / 3, y.astype("float64") / 3


def custom_model():
    return net().double()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
