"""L1Loss, SmoothL1Loss, HuberLoss."""

import torch
from shared import loop, net, numbers, table_schema
from torch.nn import functional

GROUP = "Losses"

data_schema, input_fn = table_schema, numbers


def loss(labels, predictions):
    smooth = functional.smooth_l1_loss(predictions, labels)
    huber = functional.huber_loss(predictions, labels, delta=0.5)
    return smooth + huber + functional.l1_loss(predictions, labels)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
    )
