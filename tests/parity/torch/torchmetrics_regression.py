"""TorchMetrics: regression errors and R2."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError, R2Score

GROUP = "Metrics"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"mse": MeanSquaredError(), "mae": MeanAbsoluteError(), "r2": R2Score()}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
