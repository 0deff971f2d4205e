"""A callback with a scheduler of torch.optim.lr_scheduler."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.optim import lr_scheduler

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Schedule:
    def on_train_begin(self):
        self.schedule = lr_scheduler.ExponentialLR(self.optimizer, 0.7)

    def on_train_batch_end(self, batch, logs):
        self.schedule.step()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Schedule()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
