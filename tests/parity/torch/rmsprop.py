"""torch.optim.RMSprop, centered."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.RMSprop(parameters, lr=0.005, centered=True, momentum=0.5)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
