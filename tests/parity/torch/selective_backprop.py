"""Selective backpropagation: only the examples with the highest losses of a batch count."""

import torch
from shared import classes, loop, net, table_schema
from torch.nn import functional

GROUP = "Losses"
EXPECT = {"workers": "refused: which examples count depends on the others of the batch"}
REFUSAL = "is not a mean over examples"

data_schema, input_fn = table_schema, classes


def loss(outputs, labels):
    each = functional.cross_entropy(outputs, labels, reduction="none")
    kept = each.topk(max(1, len(each) // 2)).indices
    return each[kept].mean()


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
