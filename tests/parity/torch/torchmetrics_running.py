"""TorchMetrics: RunningMean itself, which takes values and weights."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torchmetrics.aggregation import RunningMean

GROUP = "Metrics"
EXPECT = "refused: it counts its values outside its states, so no checkpoint holds the count"
REFUSAL = r"the metric 'm' \(RunningMean\) is a wrapper \(Running\)"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"m": RunningMean(window=5)}


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
