"""A callback that remembers the best weights while training continues."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class KeepBest:
    def on_train_begin(self):
        self.best = None

    def on_epoch_end(self, epoch, logs):
        for group in self.optimizer.param_groups:
            group["lr"] *= 5
        if self.best is None or logs["val_loss"] < self.best[0]:
            weights = [p.detach().clone() for p in self.model.parameters()]
            self.best = logs["val_loss"], weights

    def on_train_end(self):
        with torch.no_grad():
            for parameter, best in zip(self.model.parameters(), self.best[1], strict=True):
                parameter.copy_(best)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [KeepBest()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
