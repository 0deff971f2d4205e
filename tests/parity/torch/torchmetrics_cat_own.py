"""TorchMetrics: CatMetric in a derived class, of errors."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torchmetrics.aggregation import CatMetric

GROUP = "Metrics"
EXPECT = "refused: its value is an array of all errors, not a number"
REFUSAL = "returns an array of shape"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Own(CatMetric):
    def update(self, preds, target):
        super().update((preds - target).abs())


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"m": Own()}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
