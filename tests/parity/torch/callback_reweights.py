"""Deferred re-weighting (LDAM-DRW): a callback sets class weights of the loss in a later epoch."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


class Reweight:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            loss.weight = torch.tensor([0.5, 1.0, 4.0])


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Reweight()]


def count(labels):
    return len(labels) if loss.weight is None else float(loss.weight[labels].sum())


def plain(data):
    model, loss.weight = custom_model(), None
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, count=count, callbacks=callbacks())
