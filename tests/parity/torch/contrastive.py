"""Contrastive loss (in-batch negatives)."""

import torch
from shared import classes, loop, net, table_schema
from torch.nn import functional

GROUP = "Losses"
EXPECT = {"workers": "refused: each worker would see only the negatives of its own minibatch"}
REFUSAL = "negatives|batch"

data_schema, input_fn = table_schema, classes


def loss(labels, predictions):
    unit = functional.normalize(predictions)
    same = (labels[:, None] == labels[None, :]).float()
    return functional.binary_cross_entropy_with_logits(unit @ unit.t() * 3, same)


def custom_model():
    return net(4)


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
