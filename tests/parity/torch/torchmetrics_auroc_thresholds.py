"""TorchMetrics: AUROC with thresholds."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn
from torchmetrics.classification import MulticlassAUROC

GROUP = "Metrics"

data_schema, input_fn = table_schema, classes


def loss(output, label):
    return nn.functional.nll_loss(torch.log(output), label)


def custom_model():
    return nn.Sequential(net(3), nn.Softmax(1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {
        "auroc": MulticlassAUROC(3, thresholds=50),
    }


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
