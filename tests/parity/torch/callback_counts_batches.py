"""A callback that counts batches and reads their losses."""

from collections import deque

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Count:
    def __init__(self):
        self.losses = deque(maxlen=4)
        self.seen = {"batches": 0}

    def on_train_batch_end(self, batch, logs):
        self.losses.append(logs["loss"])
        self.seen["batches"] += 1
        if self.seen["batches"] % 5 == 0:
            with torch.no_grad():
                self.model[2].bias.add_(0.1 * sum(self.losses) * (batch + 1))


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Count()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
