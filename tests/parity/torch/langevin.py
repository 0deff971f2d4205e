"""A custom optimizer that adds noise to the weights (Langevin dynamics)."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"
EXPECT = "differs: random draws are a function of (seed, step), not of a generator's state"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Langevin(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        value = super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(torch.randn_like(weight), alpha=0.01)
        return value


def custom_model():
    return nn.Sequential(*net(), nn.Dropout(0.1))


def optimizer(parameters):
    return Langevin(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
