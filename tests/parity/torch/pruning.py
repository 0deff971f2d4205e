"""torch.nn.utils.prune."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.nn.utils import prune

GROUP = "Parameters and buffers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    model = net()
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
