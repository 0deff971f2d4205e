"""A callback that freezes a layer within an epoch."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Freeze:
    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, batch, logs):
        self.batches += 1
        if self.batches == 8:
            self.model[0].requires_grad_(False)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def callbacks():
    return [Freeze()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
