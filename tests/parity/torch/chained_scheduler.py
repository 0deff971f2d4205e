"""lr_scheduler(optimizer): ChainedScheduler of a CyclicLR with momentum and a ConstantLR."""

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
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def lr_scheduler(optimizer):
    cyclic = schedulers.CyclicLR(optimizer, 0.01, 0.05, step_size_up=3, mode="exp_range", gamma=0.9)
    constant = schedulers.ConstantLR(optimizer, factor=0.5, total_iters=4)
    return {"scheduler": schedulers.ChainedScheduler([cyclic, constant]), "interval": "step"}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule = lr_scheduler(stepping)["scheduler"]
    return loop(data, model, stepping, loss, input_fn, after_update=schedule.step)
