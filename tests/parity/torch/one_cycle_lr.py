"""OneCycleLR in a hook of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=30)

    def advance(*_):
        schedule.step()

    optimizer.register_step_post_hook(advance)
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
