"""averaged_model(model): an exponential moving average."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.optim import swa_utils

GROUP = "Weight averages"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def averaged_model(model):
    return swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    average = averaged_model(model)
    return loop(data, model, optimizer(model.parameters()), loss, input_fn, average=average)
