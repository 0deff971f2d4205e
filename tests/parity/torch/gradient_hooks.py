"""Gradient hooks of parameters."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Gradients"
EXPECT = {
    "workers": "refused: the hook would see the gradient of one minibatch, not of the update; use "
    "a hook of the optimizer"
}
REFUSAL = "hook on its gradient"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    model = net()
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
