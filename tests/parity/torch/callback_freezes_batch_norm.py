"""A callback that puts a BatchNorm into evaluation mode in a later epoch."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Callbacks"
EXPECT = {
    "two workers": "differs: each worker normalizes with the statistics of its own minibatch",
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Freeze:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model[1].eval()


def custom_model():
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=0.5), nn.Linear(6, 1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Freeze()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
