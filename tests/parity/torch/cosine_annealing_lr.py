"""CosineAnnealingLR in a hook of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)

    def advance(*_):
        schedule.step()

    optimizer.register_step_post_hook(advance)
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
