"""TorchMetrics: AUROC and average precision of all predictions."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn
from torchmetrics.classification import MulticlassAUROC, MulticlassAveragePrecision

GROUP = "Metrics"
EXPECT = {
    "workers": "refused: their states are lists of all predictions; with `thresholds=200` they add "
    "up"
}
REFUSAL = r"the states of the metric 'auroc' .* do not add up: its state 'preds' is a list"

data_schema, input_fn = table_schema, classes


def loss(output, label):
    return nn.functional.nll_loss(torch.log(output), label)


def custom_model():
    return nn.Sequential(net(3), nn.Softmax(1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {
        "auroc": MulticlassAUROC(3),
        "precision": MulticlassAveragePrecision(3),
    }


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
