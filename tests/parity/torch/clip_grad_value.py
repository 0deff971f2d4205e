"""clip_grad_value_ in a hook of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Gradients"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def clip(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            nn.utils.clip_grad_value_(group["params"], clip_value=0.05)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
