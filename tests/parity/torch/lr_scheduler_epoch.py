"""lr_scheduler(optimizer): once per epoch."""

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
    return schedulers.ExponentialLR(optimizer, 0.5)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule = lr_scheduler(stepping)
    return loop(data, model, stepping, loss, input_fn, after_epoch=lambda _: schedule.step())
