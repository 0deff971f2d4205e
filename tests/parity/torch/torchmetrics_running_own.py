"""TorchMetrics: RunningMean in a derived class, of the errors of the last two batches."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torchmetrics.aggregation import RunningMean

GROUP = "Metrics"
EXPECT = "refused: it counts its values outside its states, so no checkpoint holds the count"
REFUSAL = r"the metric 'm' \(Own\) is a wrapper \(Running\)"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Own(RunningMean):
    def update(self, preds, target):
        super().update((preds - target).abs())


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"m": Own(window=2)}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
