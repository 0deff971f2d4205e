"""TorchMetrics: a MetricCollection."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassPrecision,
)

GROUP = "Metrics"

data_schema, input_fn = table_schema, classes


def loss(output, label):
    return nn.functional.nll_loss(torch.log(output), label)


def custom_model():
    return nn.Sequential(net(3), nn.Softmax(1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    metrics = [MulticlassAccuracy(3), MulticlassF1Score(3), MulticlassPrecision(3)]
    return MetricCollection(metrics, prefix="of_")


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=dict(eval_metrics_fn().items()))
