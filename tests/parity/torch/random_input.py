"""`torch.rand` in the input function, and dropout in the model."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"
KILLED = True

data_schema = table_schema
loss = nn.MSELoss()


def input_fn(records):
    features, labels = numbers(records)
    noise = torch.randn(features.shape)
    keep = torch.rand(features.shape[0], 1) > 0.1
    return ((torch.as_tensor(features) + noise) * keep).numpy(), labels


def custom_model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
