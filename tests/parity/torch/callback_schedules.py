"""A callback that sets the learning rate by hand, and one that logs it."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class WarmUp:
    """Also counts: the rate depends on all batches so far."""

    def __init__(self, batches):
        self.batches, self.done = batches, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.done += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, self.done / self.batches)


class Logs:
    def __init__(self):
        self.rates = []

    def on_epoch_end(self, epoch, logs):
        self.rates.append(self.optimizer.param_groups[0]["lr"])

    def on_train_end(self):
        # So that what was logged is seen: in the model.
        with torch.no_grad():
            self.model[0].bias[: len(self.rates)] = torch.tensor(self.rates)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [WarmUp(8), Logs()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
