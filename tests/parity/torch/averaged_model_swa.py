"""averaged_model(model): SWA of a model with BatchNorm, with averaged buffers."""

import torch
from shared import loop, numbers, table_schema
from torch import nn
from torch.optim import swa_utils

GROUP = "Weight averages"
EXPECT = {"two workers": "differs: BatchNorm normalizes with the minibatch of each worker"}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))


def averaged_model(model):
    return swa_utils.AveragedModel(model, use_buffers=True)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    average = averaged_model(model)
    return loop(data, model, optimizer(model.parameters()), loss, input_fn, average=average)
