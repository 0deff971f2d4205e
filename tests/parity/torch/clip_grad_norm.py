"""clip_grad_norm_ in a hook of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Gradients"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def clip(parameters):
    torch.nn.utils.clip_grad_norm_(parameters, 0.1)


def custom_model():
    return net()


def optimizer(parameters):
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: clip(parameters))
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
