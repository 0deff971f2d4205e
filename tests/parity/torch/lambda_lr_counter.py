"""LambdaLR with a function that counts its own calls."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def lr_scheduler(optimizer):
    num_calls = 0

    def factor(step):
        nonlocal num_calls
        num_calls += 1
        return 1 / num_calls

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def plain(data):
    model = custom_model()
    made = optimizer(model.parameters())
    scheduler = lr_scheduler(made)
    return loop(data, model, made, loss, input_fn, after_epoch=lambda _: scheduler.step())
