"""lr_scheduler(optimizer): LambdaLR after every second update."""

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
    schedule = schedulers.LambdaLR(optimizer, lambda count: 0.9**count)
    return {"scheduler": schedule, "interval": "step", "frequency": 2}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule, count = lr_scheduler(stepping)["scheduler"], iter(range(1, 1000))

    def step():
        if next(count) % 2 == 0:
            schedule.step()

    return loop(data, model, stepping, loss, input_fn, after_update=step)
