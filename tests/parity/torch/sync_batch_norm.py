"""nn.SyncBatchNorm."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Layers"
EXPECT = {
    "two workers": "differs: each worker normalizes with the statistics of its own minibatch",
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(nn.Linear(8, 6), nn.SyncBatchNorm(6), nn.Linear(6, 1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
