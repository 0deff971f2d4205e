"""A callback that draws random numbers."""

import numpy as np
import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Noise:
    """With a generator of its own, so that a plain script draws the same."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)
        self.numbers = np.random.default_rng(5)

    def on_train_batch_end(self, batch, logs):
        with torch.no_grad():
            noise = torch.randn(1, generator=self.generator) * self.numbers.normal()
            self.model[2].bias.add_(0.01 * noise.item())


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Noise()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
