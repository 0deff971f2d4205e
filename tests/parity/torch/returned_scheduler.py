"""A scheduler that is returned by `optimizer`."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Learning rate schedules"
EXPECT = "refused: create it in lr_scheduler(optimizer)"
REFUSAL = "lr_scheduler\\(optimizer\\)"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5)


def plain(data):
    model = custom_model()
    stepping, _ = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn)
