"""CrossEntropyLoss with class weights."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Losses"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 3.0]))


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()

    def count(labels):
        return loss.weight[labels].sum().item()

    return loop(data, model, optimizer(model.parameters()), loss, input_fn, count=count)
