"""A penalty on the weights in the loss, which reads the file's variable `model`."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Losses"

data_schema, input_fn = table_schema, numbers


def custom_model():
    global model  # noqa: PLW0603 - as scripts do
    model = net()
    return model


def loss(labels, outputs):
    l2_norm = sum(p.pow(2.0).sum() for p in model.parameters())
    return nn.functional.mse_loss(outputs, labels) + 0.05 * l2_norm


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
    )
