"""A callback reads the gradients of the update in `on_train_batch_end`, as RigL and monitors do."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


class SlowDownByNorm:
    def on_train_batch_end(self, batch, logs):
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = float(sum(g.square().sum() for g in gradients)) ** 0.5
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + norm)


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [SlowDownByNorm()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
