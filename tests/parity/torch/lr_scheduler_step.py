"""lr_scheduler(optimizer): OneCycleLR after each update."""

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
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def lr_scheduler(optimizer):
    schedule = schedulers.OneCycleLR(optimizer, 0.2, total_steps=40)
    return {"scheduler": schedule, "interval": "step"}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule = lr_scheduler(stepping)["scheduler"]
    return loop(data, model, stepping, loss, input_fn, after_update=schedule.step)
