"""A callback that unfreezes a layer in a later epoch."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Unfreeze:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model[0].requires_grad_(True)


def custom_model():
    model = net()
    model[0].requires_grad_(False)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Unfreeze()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
