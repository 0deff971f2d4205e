"""KLDivLoss with `reduction="batchmean"`."""

import numpy as np
import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Losses"

data_schema = table_schema
loss = nn.KLDivLoss(reduction="batchmean")


def input_fn(records):
    """Return (x, probabilities of the classes)."""
    x, label = classes(records)
    return x, np.float32(0.1 + 0.7 * np.eye(3)[label])


def custom_model():
    return nn.Sequential(*net(3), nn.LogSoftmax(1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
