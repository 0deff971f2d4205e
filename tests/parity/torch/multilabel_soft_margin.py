"""MultiLabelSoftMarginLoss with class weights: several labels for an example."""

import numpy as np
import torch
from shared import loop, net, table_schema
from torch import nn

GROUP = "Losses"

data_schema = table_schema
loss = nn.MultiLabelSoftMarginLoss(weight=torch.tensor([1.0, 2.5, 0.5]))


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x, np.float32(x[:, :3] + x[:, 3:6] > 0.3)


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def eval_metrics_fn():
    def metric(labels, output):
        return ((output > 0) == (labels > 0.5)).float().mean(1)

    return {"metric": metric}


def plain(data):
    model = custom_model()
    measured = eval_metrics_fn()["metric"]
    return loop(
        data, model, optimizer(model.parameters()), loss, input_fn,
        metric=lambda output, labels: measured(labels, output).mean(),
    )  # fmt: skip
