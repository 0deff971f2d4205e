"""A custom optimizer (Lookahead) that counts in an attribute."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Lookahead(torch.optim.SGD):
    """Slow weights that follow the fast ones each four steps."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.counter = 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in self.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        value = super().step(closure)
        self.counter += 1
        if self.counter % 4 == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for fast, mine in zip(group["params"], slow, strict=True):
                    mine.lerp_(fast, 0.5)
                    fast.copy_(mine)
        return value


def custom_model():
    return net()


def optimizer(parameters):
    return Lookahead(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
