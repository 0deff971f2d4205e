"""Gradual unfreezing: `add_param_group` in a hook of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    first, second = (weights := list(parameters))[:2], weights[2:]
    optimizer = torch.optim.Adam(second, lr=0.02)
    steps = [0]

    def unfreeze(*_):
        steps[0] += 1
        if steps[0] == 8:
            optimizer.add_param_group({"params": first, "lr": 0.005})

    optimizer.register_step_post_hook(unfreeze)
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
