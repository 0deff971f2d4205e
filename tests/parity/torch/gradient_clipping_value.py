"""gradient_clipping: by value."""

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


gradient_clipping = {"value": 0.02}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(
        data, model, stepping, loss, input_fn, clip=lambda p: nn.utils.clip_grad_value_(p, 0.02)
    )
