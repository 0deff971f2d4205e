"""torch.optim.Adam with `capturable=True`, which wants a GPU."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01, capturable=True)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
