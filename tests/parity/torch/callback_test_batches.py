"""A callback with methods for the batches of a validation."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"
EXPECT = {
    "two workers": "refused: workers share the batches of an evaluation; use `on_test_end`",
}
REFUSAL = r"Follow has on_test_batch_end\(\)"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Follow:
    def __init__(self):
        self.batches = 0

    def on_test_batch_end(self, batch, logs):
        self.batches += 1

    def on_epoch_begin(self, epoch):
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.batches)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Follow()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
