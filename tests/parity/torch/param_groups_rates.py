"""A learning rate per layer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    parameters = list(parameters)
    return torch.optim.SGD(
        [{"params": parameters[:2], "lr": 0.01}, {"params": parameters[2:]}], lr=0.1, momentum=0.5
    )


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
