"""A hook of the optimizer that keeps an average as an attribute of each parameter."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


def smooth(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.average = 0.9 * getattr(parameter, "average", 0.0) + parameter.grad
            parameter.grad = parameter.grad + 0.1 * parameter.average


def custom_model():
    return net(3)


def optimizer(parameters):
    made = torch.optim.AdamW(parameters, lr=0.02)
    made.register_step_pre_hook(smooth)
    return made


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
