"""A callback that stops within an epoch."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Stop:
    def on_train_begin(self, logs=None):
        # Late, so that a kill comes before.
        self.left = 16

    def on_train_batch_end(self, batch, logs):
        self.left -= 1
        if self.left == 0:
            self.model.stop_training = True


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Stop()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
