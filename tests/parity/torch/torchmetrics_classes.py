"""TorchMetrics: accuracy, F1 and one value per class."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassRecall,
)

GROUP = "Metrics"
KILLED = True

data_schema, input_fn = table_schema, classes


def loss(output, label):
    return nn.functional.nll_loss(torch.log(output), label)


def custom_model():
    return nn.Sequential(net(3), nn.Softmax(1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {
        "accuracy": MulticlassAccuracy(3, average="micro"),
        "f1": MulticlassF1Score(3),
        "recall": MulticlassRecall(3, average=None),
    }


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
