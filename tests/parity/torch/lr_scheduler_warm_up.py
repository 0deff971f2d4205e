"""lr_scheduler(optimizer): SequentialLR with a warm-up."""

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
    warm_up = schedulers.LinearLR(optimizer, 0.1, total_iters=4)
    cosine = schedulers.CosineAnnealingLR(optimizer, 30)
    schedule = schedulers.SequentialLR(optimizer, [warm_up, cosine], [4])
    return {"scheduler": schedule, "interval": "step"}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule = lr_scheduler(stepping)["scheduler"]
    return loop(data, model, stepping, loss, input_fn, after_update=schedule.step)
