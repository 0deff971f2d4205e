"""torch.optim.NAdam."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.NAdam(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
