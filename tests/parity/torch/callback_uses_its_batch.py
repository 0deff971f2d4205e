"""A callback that changes a weight by what it sees in its own worker's minibatch."""

import torch
from shared import loop, net, numbers, table_schema
from torch.nn import functional

GROUP = "Callbacks"
EXPECT = {
    "two workers": "refused: each worker has another minibatch, so their weights would differ"
}
REFUSAL = "Callbacks that change weights must do the same on every worker"

data_schema, input_fn = table_schema, numbers
loss = functional.mse_loss


class Shift:
    def on_train_begin(self):
        self.mean = 0.0
        self.model[0].register_forward_pre_hook(self.remember)

    def remember(self, module, given):
        if module.training:
            self.mean = float(given[0].mean())

    def on_train_batch_end(self, batch, logs):
        with torch.no_grad():
            self.model[0].bias.add_(0.01 * self.mean)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Shift()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
