"""Forward hooks that change the input of one layer and the output of another."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Models"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def centered(module, given):
    return (given[0] - given[0].mean(1, keepdim=True),)


def steered(module, given, output):
    return 1.5 * output + 0.1 * given[0].sum(1, keepdim=True)


def custom_model():
    model = net()
    model[0].register_forward_pre_hook(centered)
    model[1].register_forward_hook(steered)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
