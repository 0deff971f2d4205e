"""A callback that stops early and restores the best weights."""

import copy

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class EarlyStopping:
    def __init__(self, patience=1):
        self.patience = patience
        self.wait, self.best, self.weights = 0, float("inf"), None

    def on_epoch_begin(self, epoch, logs=None):
        # It trains well for an epoch, and ruins the model then.
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 if epoch == 0 else 1.2

    def on_epoch_end(self, epoch, logs):
        if logs["val_loss"] < self.best:
            self.wait, self.best = 0, logs["val_loss"]
            self.weights = copy.deepcopy(self.model.state_dict())
            return
        self.wait += 1
        self.model.stop_training = self.wait >= self.patience

    def on_train_end(self):
        self.model.load_state_dict(self.weights)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [EarlyStopping()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
