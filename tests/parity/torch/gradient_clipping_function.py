"""gradient_clipping: a function."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Gradients"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def gradient_clipping(parameters, limit=0.1):
    nn.utils.clip_grad_norm_(parameters, limit, norm_type=1.0)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, clip=gradient_clipping)
