"""Grokfast in a hook that is a callable object: slow gradients, kept by parameter."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


class Grokfast:
    def __init__(self):
        self.slow = {}

    def __call__(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                before = self.slow.get(id(parameter), parameter.grad)
                self.slow[id(parameter)] = 0.9 * before + 0.1 * parameter.grad
                parameter.grad = parameter.grad + 2 * self.slow[id(parameter)]


def custom_model():
    return net(3)


def optimizer(parameters):
    made = torch.optim.AdamW(parameters, lr=0.02)
    made.register_step_pre_hook(Grokfast())
    return made


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
