"""A full backward hook that clips the gradient of the input of a module."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Gradients"
EXPECT = {"workers": "refused: the hook would see gradients of one minibatch, not of the update"}
REFUSAL = "has a backward hook"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def clip(module, grad_input, grad_output):
    return tuple(
        gradient if gradient is None else gradient / (gradient.norm() + 1e-6)
        for gradient in grad_input
    )


def custom_model():
    model = net()
    model[2].register_full_backward_hook(clip)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
