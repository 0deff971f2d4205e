"""CrossEntropyLoss with ignore_index."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Losses"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss(ignore_index=0)


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()

    def count(labels):
        return (labels != 0).sum().item()

    return loop(data, model, optimizer(model.parameters()), loss, input_fn, count=count)
