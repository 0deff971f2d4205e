"""Precision in a model file: bfloat16."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Number formats"
EXPECT = {
    "two workers": "equal within 0.02: bfloat16 has eight significant bits, and two halves of a "
    "batch round differently from the whole"
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


precision = "bf16"


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, precision=torch.bfloat16)
