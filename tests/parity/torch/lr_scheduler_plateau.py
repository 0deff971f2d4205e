"""lr_scheduler(optimizer): ReduceLROnPlateau on the validation loss."""

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
    return schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule = lr_scheduler(stepping)
    return loop(data, model, stepping, loss, input_fn, after_epoch=schedule.step)
