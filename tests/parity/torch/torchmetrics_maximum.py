"""TorchMetrics: a custom Metric that is a maximum."""

import torch
import torchmetrics
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Metrics"
EXPECT = {"workers": "refused: workers add up the states of metrics"}
REFUSAL = r"the metric 'largest' .* do not add up: its state 'value' is reduced by max"

data_schema, input_fn = table_schema, classes


def loss(output, label):
    return nn.functional.nll_loss(torch.log(output), label)


class Largest(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="max")

    def update(self, preds, target):
        self.value = torch.maximum(self.value, preds.max())

    def compute(self):
        return self.value


def custom_model():
    return nn.Sequential(net(3), nn.Softmax(1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {
        "largest": Largest(),
    }


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
