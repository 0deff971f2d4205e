"""`register_post_accumulate_grad_hook`: a hook that runs after a gradient is accumulated."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Gradients"
EXPECT = {"workers": "refused: the hook would see the gradient of one minibatch, not of the update"}
REFUSAL = "has a hook on its gradient"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def clip(parameter):
    parameter.grad.clamp_(-0.02, 0.02)


def custom_model():
    model = net()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clip)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
