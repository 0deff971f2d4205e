"""lr_scheduler(optimizer): a list of two, stepping after updates and after epochs."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.optim import lr_scheduler as schedulers

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def lr_scheduler(optimizer):
    return [
        {"scheduler": schedulers.ExponentialLR(optimizer, 0.99), "interval": "step"},
        schedulers.MultiplicativeLR(optimizer, lambda _: 0.7),
    ]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    often, seldom = lr_scheduler(stepping)
    return loop(
        data,
        model,
        stepping,
        loss,
        input_fn,
        after_update=often["scheduler"].step,
        after_epoch=lambda _: seldom.step(),
    )
