"""Gradient hooks that remember: an average in an object, and a counter in a closure."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Gradients"
EXPECT = {
    "workers": "refused: the hook would see the gradient of one minibatch, not of the update; use "
    "a hook of the optimizer"
}
REFUSAL = "hook on its gradient"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


class Smooth:
    def __init__(self):
        self.average = 0.0

    def __call__(self, gradient):
        self.average = 0.9 * self.average + 0.1 * gradient
        return gradient + self.average


def warm_up():
    num_calls = 0

    def scale(gradient):
        nonlocal num_calls
        num_calls += 1
        return gradient * min(1.0, num_calls / 5)

    return scale


def custom_model():
    model = net(3)
    model[0].weight.register_hook(Smooth())
    model[0].bias.register_hook(warm_up())
    return model


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.02)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
