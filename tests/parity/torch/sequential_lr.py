"""SequentialLR, and CyclicLR with momentum, in hooks of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.optim import lr_scheduler

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    parameters = list(parameters)
    optimizer = torch.optim.SGD(
        [{"params": parameters[:2], "lr": 0.05}, {"params": parameters[2:], "lr": 0.1}],
        lr=0.1, momentum=0.9,
    )  # fmt: skip
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    cyclic = lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3, mode="triangular2")
    schedule = lr_scheduler.SequentialLR(optimizer, [warmup, cyclic], milestones=[4])
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
