"""torch.amp.GradScaler."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Number formats"
EXPECT = 'refused: precision = "fp16" scales the loss'
REFUSAL = 'precision = "fp16"'

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.amp.GradScaler("cpu"), torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters())[1], loss, input_fn)
