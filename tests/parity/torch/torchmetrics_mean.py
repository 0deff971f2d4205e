"""TorchMetrics: MeanMetric, which takes values and weights."""

import torch
import torchmetrics
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Metrics"
EXPECT = "refused: update(value, weight) would receive the labels as weights; derive a class"
REFUSAL = r"a MeanMetric, whose update\(value, weight\) does not take"

data_schema, input_fn = table_schema, classes


def loss(output, label):
    return nn.functional.nll_loss(torch.log(output), label)


def custom_model():
    return nn.Sequential(net(3), nn.Softmax(1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {
        "mean": torchmetrics.MeanMetric(),
    }


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn)
