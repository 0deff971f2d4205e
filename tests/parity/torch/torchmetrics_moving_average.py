"""TorchMetrics: a custom Metric that is a moving average and declares its state as a sum."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torchmetrics import Metric

GROUP = "Metrics"
EXPECT = {"workers": "refused: its state does not add up"}
REFUSAL = "declares .sum."

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Smoothed(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, preds, target):
        self.value = 0.9 * self.value + 0.1 * (preds - target).abs().mean()

    def compute(self):
        return self.value


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"m": Smoothed()}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
