"""TorchMetrics: SumMetric itself, which takes values."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torchmetrics.aggregation import SumMetric

GROUP = "Metrics"
EXPECT = "refused: update(value) takes no labels; derive a class"
REFUSAL = "a SumMetric"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"m": SumMetric()}


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
