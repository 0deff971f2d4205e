"""torch.optim.SGD with momentum, Nesterov, weight decay."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
