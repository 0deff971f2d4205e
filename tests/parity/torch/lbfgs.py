"""torch.optim.LBFGS."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"
EXPECT = "refused: it evaluates the loss several times within a step"
REFUSAL = "LBFGS"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.LBFGS(parameters)


def plain(data):
    model = custom_model()
    return loop(data, model, torch.optim.SGD(model.parameters(), lr=0.1), loss, input_fn)
